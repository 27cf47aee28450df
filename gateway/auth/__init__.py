"""Who may: JWTs, signed URLs and public patterns, judged by pure functions; the verdicts that are remembered."""
