"""What the console counts of its requests."""

import httpx

from redrive.console.app import build_app
from redrive.settings import Settings


async def test_pages_and_the_api_are_counted_apart() -> None:
    """A route of the API has its whole path, a page of the same name its own; inventions share one label."""
    app = build_app(Settings(temporal_address="127.0.0.1:1", database_url="postgresql://a:b@127.0.0.1:1/none"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://console.test") as client:
        for path in ("/api/v1/runs", "/api/v1/runs/run-1", "/runs", "/wp-login.php", "/wp-admin"):
            await client.get(path)
    count = app.state.app_state.metrics.registry.get_sample_value
    counted = {
        route: sum(
            count("redrive_console_requests_total", {"method": "GET", "route": route, "status": status}) or 0
            for status in ("303", "401", "404")
        )
        for route in ("/api/v1/runs", "/api/v1/runs/{run_id}", "/runs", "unknown")
    }
    assert counted == {"/api/v1/runs": 1, "/api/v1/runs/{run_id}": 1, "/runs": 1, "unknown": 2}
