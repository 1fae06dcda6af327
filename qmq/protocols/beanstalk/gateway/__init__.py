"""beanstalkd's words to the broker's: tubes are queues, a put is a SEND, a delete is an ACK."""
