"""The beanstalkd protocol: text lines, and job bodies behind a line with their size (beanstalkd's protocol.txt)."""
