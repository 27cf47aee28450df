"""Generate the reference pages in `docs/reference` from the code that they describe.

Each page has hand-written prose, and a generated part between `<!-- name -->` and `<!-- /name -->`.  The modules here
make those parts from the configuration's models, the command line, the admin port's OpenAPI document, the metric
families, the access log's fields and the pipeline's tables.  `python -m reference_pages` writes them; a test compares
the committed pages with its output.
"""
