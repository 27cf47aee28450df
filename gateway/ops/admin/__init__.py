"""The admin port: the API for inspecting and controlling the gateway.  Not for the public.

`app` assembles it.  `guard` authorises requests, `endpoint` is the shape of a request and an answer, and `openapi`
documents every endpoint.  The other modules answer: `overview`, `history`, `origins`, `streams`, `tails`, `counts`,
`purge`, `plan` and `controls`.
"""

from gateway.ops.admin.app import admin_application

__all__ = ["admin_application"]
