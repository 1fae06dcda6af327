"""The application, as `INSTALLED_APPS` finds it."""

from django.apps import AppConfig
from django.core.checks import register

from qmq.client.django.conf import check_setting


class QmqConfig(AppConfig):
    """Checks the setting `QMQ`; there are no models."""

    name = "qmq.client.django"
    label = "qmq"
    verbose_name = "QMQ"

    def ready(self) -> None:
        register(check_setting)
