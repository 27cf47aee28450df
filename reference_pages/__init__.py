"""The reference pages of `docs/reference`, written from the code that they describe.

Each page has prose of its own and parts between `<!-- name -->` and `<!-- /name -->`.  The modules here make those
parts: from the configuration's models, the command line, the admin port's OpenAPI document, the metric families, the
access log's fields and the pipeline's tables.  `python -m reference_pages` writes them; a test holds the committed
pages equal to what it would write.
"""
