// Turns counters into rates.  Counters are since the gateway's start; the difference of two samples makes a rate.
//
// A sample is the counters of one moment, from an overview or an entry of the gateway's history.  A restarted gateway
// counts from 0 again, so a sample before the restart and one after it make no rate.

/** The outcomes in drawing order: from free of cost to failed. */
export const OUTCOMES = [
  "hit", "followed", "collapsed", "joined", "revalidated", "stale_if_error", "miss", "pass", "refused", "failed", "aborted",
]

/** Seconds remembered: as long as the gateway's history. */
export const MEMORY_S = 600
/** Samples this many seconds apart, or more, give no rate. */
export const GAP_S = 5

/** Sums over modes, by outcome. */
function byOutcome(requests) {
  const sums = {}
  for (const outcomes of Object.values(requests)) for (const [outcome, n] of Object.entries(outcomes)) sums[outcome] = (sums[outcome] ?? 0) + n
  return sums
}

export const total = (counts) => Object.values(counts).reduce((sum, n) => sum + n, 0)

/** An overview and the cumulative buckets of the delivery delay, as a sample. */
export function sampleOf(overview, delays) {
  const { now: at, uptime_s, upstream_bytes, downstream_bytes, subscribers, spared } = overview
  const { requests_spared, bytes_spared } = spared
  const requests = byOutcome(overview.requests)
  return { at, uptime_s, requests, upstream_requests: total(overview.upstream_requests), upstream_bytes, downstream_bytes, subscribers, requests_spared, bytes_spared, delays }
}

/** The samples of `/api/history`. */
export function samplesOf({ samples, delivery_delay_bounds_s }) {
  const bounds = [...delivery_delay_bounds_s, Infinity]
  return samples.map(({ delivery_delays, ...sample }) => ({ ...sample, delays: delivery_delays.map((n, at) => [bounds[at], n]) }))
}

/** Rates per second between two samples, and the shares of the second; null if they make no rate. */
export function between(before, now) {
  const seconds = before ? now.at - before.at : 0
  if (seconds <= 0 || now.uptime_s < before.uptime_s) return null
  // Of several workers, one may have died and taken its counts with it.
  const rate = (n, past) => Math.max(0, n - (past ?? 0)) / seconds
  const outcomes = Object.fromEntries(OUTCOMES.map((one) => [one, rate(now.requests[one] ?? 0, before.requests[one])]))
  return {
    at: now.at,
    outcomes,
    clients: rate(total(now.requests), total(before.requests)),
    origin: rate(now.upstream_requests, before.upstream_requests),
    downstream: rate(now.downstream_bytes, before.downstream_bytes),
    upstream: rate(now.upstream_bytes, before.upstream_bytes),
    subscribers: now.subscribers,
    requestsSpared: now.requests_spared,
    bytesSpared: now.bytes_spared,
  }
}

/** The last minutes, as columns for charts.  A time without samples is a gap, not a line across it. */
export class History {
  constructor() {
    this.points = []
  }

  add(point) {
    const last = this.points.at(-1)
    if (last && point.at < last.at) this.points = []
    if (last && point.at - last.at > GAP_S) this.points.push({ at: last.at + 1e-3, gap: true })
    this.points.push(point)
    const kept = this.points.findIndex(({ at }) => at >= point.at - MEMORY_S)
    this.points.splice(0, kept)
  }

  column(of) {
    return this.points.map((point) => (point.gap ? null : (of(point) ?? null)))
  }
}
