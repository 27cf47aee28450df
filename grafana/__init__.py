"""Dashboards for Grafana, and rules and scrape configuration for Prometheus.

`python -m grafana` writes `dashboards/*.json` from what is written here; a test holds that they are the same.
"""
