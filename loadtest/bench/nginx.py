"""The configurations of nginx, as a caching proxy and with nchan."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

COLD: Final = "cold"
BUFFERED_MESSAGES: Final = 1_000
MAX_CONNECTIONS: Final = 16_384


def nginx_config(
    listen: int,
    origins: dict[str, int],
    folder: Path,
    store: Path,
    tls: str = "",
    *,
    logs: bool = False,
    service: int = 0,
) -> str:
    """nginx as a caching proxy; paths below /pass, and below another's /cold, are relayed.  `logs`: it writes an access
    log.  `service`: the port of an authorisation service that allows or refuses each request; 0 for none."""
    upstreams = "".join(
        f"  upstream u{name} {{ server 127.0.0.1:{port}; keepalive 64; }}\n" for name, port in origins.items()
    )
    cached = "".join(
        f"    location /{name}/ {{ proxy_pass http://u{name}; proxy_cache store; }}\n"
        f"    location /{name}/{COLD}/ {{ proxy_pass http://u{name}; }}\n"
        for name in origins
        if name != "pass"
    )
    asking, judge = "", ""
    if service:
        upstreams += f"  upstream uservice {{ server 127.0.0.1:{service}; keepalive 64; }}\n"
        asking = "    auth_request /_may;\n"
        # An answer is kept for one token and one URL, as the gateway keeps a verdict.
        judge = """    location = /_may {
      internal;
      auth_request off;
      proxy_pass http://uservice/may;
      proxy_pass_request_body off;
      proxy_set_header Content-Length "";
      proxy_set_header Connection "";
      proxy_set_header X-Forwarded-Uri $request_uri;
      proxy_cache store;
      proxy_cache_key "may $http_authorization $request_uri";
    }
"""
    return f"""{nginx_head(folder)}
http {{
{nginx_http(folder, logs=logs)}
  proxy_cache_path {store} levels=1:2 keys_zone=store:32m max_size=1g inactive=1h use_temp_path=off;
  open_file_cache max=20000 inactive=600s;
  open_file_cache_valid 600s;
  proxy_http_version 1.1;
  proxy_set_header Connection "";
  proxy_cache_key $request_uri;
  proxy_cache_lock on;
{upstreams}
  server {{
    listen 127.0.0.1:{listen} backlog=4096;
{tls}{asking}{judge}{cached}    location /pass/ {{ proxy_pass http://upass; }}
  }}
}}
"""


def nchan_config(listen: int, folder: Path, module: Path, tls: str = "", *, logs: bool = False) -> str:
    """nchan: POST /pub/ID publishes, /sse/ID and /poll/ID subscribe to future messages."""
    return f"""load_module {module};
{nginx_head(folder)}
http {{
{nginx_http(folder, logs=logs)}
  nchan_shared_memory_size 256m;
  nchan_message_buffer_length {BUFFERED_MESSAGES};
  nchan_message_timeout 10m;
  server {{
    listen 127.0.0.1:{listen} backlog=4096;
{tls}    location ~ ^/pub/(\\w+)$ {{
      nchan_publisher; nchan_channel_id $1;
    }}
    location ~ ^/sse/(\\w+)$ {{
      nchan_subscriber eventsource; nchan_channel_id $1; nchan_subscriber_first_message newest;
    }}
    location ~ ^/poll/(\\w+)$ {{
      nchan_subscriber longpoll; nchan_channel_id $1; nchan_subscriber_first_message newest;
    }}
  }}
}}
"""


def nginx_http(folder: Path, *, logs: bool) -> str:
    """The settings of `http` that all nginx peers share; `logs`: they write an access log."""
    log = "off"
    if logs:
        # What the gateway's lines have: client, request, status, bytes, times, user agent.
        log = f"{folder}/access.log production buffer=256k flush=1s"
    return f"""\
  log_format production '$http_x_forwarded_for [$time_iso8601] "$request" $status $body_bytes_sent $request_time '
                        '"$http_referer" "$http_user_agent"';
  access_log {log};
  sendfile on;
  tcp_nodelay on;
  keepalive_requests 1000000000;
  keepalive_timeout 600s;
  default_type application/octet-stream;"""


def nginx_head(folder: Path) -> str:
    """The settings above `http`: one worker."""
    user = "user root;\n" if os.geteuid() == 0 else ""
    return f"""{user}worker_processes 1;
worker_rlimit_nofile {MAX_CONNECTIONS + 1024};
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
events {{ worker_connections {MAX_CONNECTIONS}; }}"""
