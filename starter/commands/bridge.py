"""`redrive bridge …`: take messages over from brokers."""

from cyclopts import App

app = App(name="bridge", help="Take messages over from a broker, until SIGTERM or Ctrl-C.")
# By name: a bridge imports its own broker's library only.
app.command("starter.commands.bridge_redis:redis")
app.command("starter.commands.bridge_rabbitmq:rabbitmq")
