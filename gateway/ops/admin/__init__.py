"""The admin port: how the gateway is looked into and steered.  Not for the public.

`app` puts it together; `guard` decides who may ask; `endpoint` is what a request and an answer are made of, and
`openapi` tells of all of them.  The others answer: `overview`, `streams`, `tails`, `purge` and `controls`.
"""

from gateway.ops.admin.app import admin_application

__all__ = ["admin_application"]
