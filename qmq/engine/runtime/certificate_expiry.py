"""Reports certificates of this node that expire soon or have expired, until renewed ones are in use."""

from datetime import UTC, datetime
from typing import Final

from qmq.engine.runtime.certificates import Certificates
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.contexts import Reporting
from qmq.engine.runtime.waker import Waker
from qmq.environment import Environment

EXPIRES_SOON_SECONDS: Final = 14 * 86_400
CHECK_SECONDS: Final = 3_600.0


class CertificateExpiry:
    """Two conditions: `certificate-expires` and `certificate-expired`."""

    def __init__(self, certificates: Certificates, environment: Environment, reports: Reporting) -> None:
        self._certificates = certificates
        self._environment = environment
        self._soon = ConditionGroup(reports, "certificate-expires")
        self._over = ConditionGroup(reports, "certificate-expired")
        self._waker = Waker()

    def wake(self) -> None:
        """Certificates were renewed."""
        self._waker.wake()

    async def run(self) -> None:
        """Check each hour, and when certificates were renewed, until cancelled."""
        while True:
            self._show(self._certificates.expiries(), self._environment.now_us() / 1e6)
            await self._waker.wait(CHECK_SECONDS)

    def _show(self, expiries: dict[str, float], now: float) -> None:
        self._over.show([f"{file} has expired" for file, at in expiries.items() if at <= now])
        self._soon.show(
            [
                f"{file} expires at {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
                for file, at in expiries.items()
                if now < at <= now + EXPIRES_SOON_SECONDS
            ]
        )
