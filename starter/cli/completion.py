"""`redrive --install-completion`."""

from cyclopts.completion.install import create_install_completion_command

from redrive.starter.cli.main import app

install = create_install_completion_command(app.install_completion, add_to_startup=True)
