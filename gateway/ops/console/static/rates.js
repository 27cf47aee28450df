// From counters to what happens now.  Counters are since the gateway's start; two looks at them make a rate.
//
// A restarted gateway counts from 0 again, so looks from before its start are forgotten.

const READS = ["catchup", "longpoll", "sse"]

/** The outcomes in the order in which they are drawn: from costing nothing to having failed. */
export const OUTCOMES = [
  "hit", "followed", "collapsed", "joined", "revalidated", "stale_if_error", "miss", "pass", "refused", "failed", "aborted",
]

/** Sum over modes, by outcome; `modes` narrows it. */
export function byOutcome(requests, modes = Object.keys(requests)) {
  const sums = Object.fromEntries(OUTCOMES.map((outcome) => [outcome, 0]))
  for (const mode of modes)
    for (const [outcome, n] of Object.entries(requests[mode] ?? {})) sums[outcome] = (sums[outcome] ?? 0) + n
  return sums
}

export const total = (counts) => Object.values(counts).reduce((sum, n) => sum + n, 0)

const minus = (now, before) => Object.fromEntries(Object.entries(now).map(([key, n]) => [key, n - (before[key] ?? 0)]))

/** What lies between two overviews, a second; null where that cannot be said. */
export function between(before, now) {
  const seconds = before ? now.now - before.now : 0
  if (seconds <= 0 || now.uptime_s < before.uptime_s) return null
  const all = minus(byOutcome(now.requests), byOutcome(before.requests))
  const reads = minus(byOutcome(now.requests, READS), byOutcome(before.requests, READS))
  const clients = total(all)
  const origin = total(now.upstream_requests) - total(before.upstream_requests)
  return {
    at: now.now,
    seconds,
    outcomes: Object.fromEntries(Object.entries(all).map(([key, n]) => [key, n / seconds])),
    clients: clients / seconds,
    origin: origin / seconds,
    downstream: (now.downstream_bytes - before.downstream_bytes) / seconds,
    upstream: (now.upstream_bytes - before.upstream_bytes) / seconds,
    ...ratios(reads, asked(now) - asked(before)),
  }
}

/** Reads and looks at the tail that the origin was asked for; the HEADs of clients are none of the gateway's. */
function asked({ requests, upstream_requests }) {
  const looks = Math.max(0, (upstream_requests.head ?? 0) - total(requests.head ?? {}))
  return READS.reduce((sum, mode) => sum + (upstream_requests[mode] ?? 0), looks)
}

/**
 * Of reads answered, the share that were hits; of the others, the share that cost the origin no request of their own.
 * A live request is counted at the origin when it begins and for its readers when they end, hence the bounds.
 */
export function ratios(reads, upstream) {
  const answered = total(reads) - reads.refused - reads.aborted
  const others = answered - reads.hit
  return {
    hitRatio: answered > 0 ? reads.hit / answered : null,
    collapseRatio: others > 0 ? Math.min(1, Math.max(0, 1 - upstream / others)) : null,
  }
}

/** The same over everything since the gateway's start. */
export const sinceStart = (overview) => ratios(byOutcome(overview.requests, READS), asked(overview))

/** The last minutes, as columns for charts.  A pause of the page is a gap, not a line across it. */
export class History {
  constructor(most = 300) {
    this.most = most
    this.points = []
  }

  add(point) {
    const last = this.points.at(-1)
    if (last && point.at < last.at) this.points = []
    if (last && point.at - last.at > 5) this.points.push({ at: last.at + 1e-3, gap: true })
    this.points.push(point)
    this.points.splice(0, this.points.length - this.most)
  }

  column(of) {
    return this.points.map((point) => (point.gap ? null : (of(point) ?? null)))
  }
}
