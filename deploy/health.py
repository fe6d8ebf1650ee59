"""The health check of the image: exit with 0 if the worker or the service of this container is alive."""

import os
import sys
import urllib.request

HEALTH_PORT = os.environ.get("CLEW_HEALTH_ADDRESS", "").rpartition(":")[2]
SERVE_PORT = os.environ.get("CLEW_SERVE_PORT") or "8080"
SECONDS = 2


def is_alive(url: str) -> bool:
    """Whether a process answers at a URL of this container. No proxy is asked."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=SECONDS) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    urls = (f"http://127.0.0.1:{HEALTH_PORT}/live", f"http://127.0.0.1:{SERVE_PORT}/health/live")
    sys.exit(not any(map(is_alive, urls)))
