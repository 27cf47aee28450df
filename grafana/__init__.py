"""Dashboards for Grafana, and rules and scrape configuration for Prometheus.

`python -m grafana` generates `dashboards/*.json` from these modules; a test checks that they are up to date.
"""
