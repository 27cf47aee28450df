"""The admin port: the API to inspect and control the gateway.  It must not be reachable by the public.

`app` assembles the admin port from the other modules.  `guard` authorises requests, `endpoint` defines requests and
answers, and `openapi` documents every endpoint.  The other modules have the endpoints: `overview`, `history`,
`origins`, `streams`, `tails`, `counts`, `purge`, `revoke`, `plan` and `controls`.
"""

from gateway.ops.admin.app import admin_application

__all__ = ["admin_application"]
