"""The retry scheduler on RabbitMQ."""
