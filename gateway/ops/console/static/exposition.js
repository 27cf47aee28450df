// Reads one histogram from the Prometheus text format: its buckets, and quantiles between two samples.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*?)\})? (\S+)/

/** Cumulative counts by upper bound, summed over all other labels; null if the histogram is not exposed. */
export function buckets(text, name) {
  const found = new Map()
  for (const line of text.split("\n")) {
    if (!line.startsWith(name)) continue
    const match = LINE.exec(line)
    const bound = match?.[1] === `${name}_bucket` && /(?:^|,)le="([^"]+)"/.exec(match[2])
    if (!bound) continue
    const le = bound[1] === "+Inf" ? Infinity : Number(bound[1])
    found.set(le, (found.get(le) ?? 0) + Number(match[3]))
  }
  return found.size ? [...found].sort((a, b) => a[0] - b[0]) : null
}

/** The `q`-quantile of the observations between `before` and `now`, linear in its bucket; null if there are none. */
export function quantile(q, now, before) {
  const past = new Map(before ?? [])
  const counts = now.map(([bound, n]) => [bound, n - (past.get(bound) ?? 0)])
  const all = counts.at(-1)?.[1] ?? 0
  if (all <= 0) return null
  let [lower, below] = [0, 0]
  for (const [bound, n] of counts) {
    if (n >= q * all) {
      if (bound === Infinity) return lower
      return n === below ? bound : lower + ((bound - lower) * (q * all - below)) / (n - below)
    }
    ;[lower, below] = [bound, n]
  }
  return lower
}
