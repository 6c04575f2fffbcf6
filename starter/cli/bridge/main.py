"""`redrive bridge …`: take messages from brokers."""

from cyclopts import App

app = App(name="bridge", help="Take messages over from a broker, until SIGTERM or Ctrl-C.")
# By name: a bridge imports only its own broker's library.
app.command("redrive.starter.cli.bridge.redis:redis")
app.command("redrive.starter.cli.bridge.rabbitmq:rabbitmq")
