// The overview: requests of clients, and the few of them that reach the origin.

import * as api from "./api.js"
import { Chart } from "./charts.js"
import { h, isSelected, say } from "./dom.js"
import { buckets, quantile } from "./exposition.js"
import * as say_ from "./format.js"
import * as origins_ from "./origins.js"
import { between, GAP_S, History, OUTCOMES, sampleOf, samplesOf, total } from "./rates.js"
import { table } from "./streams.js"

export const DELAY = "durable_gateway_delivery_delay_seconds"
/** The busiest streams are not fetched at every refresh, because finding them visits all streams. */
const LOOKS_PER_TOP = 5
/** The least seconds between two samples that give a rate. */
const LEAST_S = 0.5
const MOST_ORIGINS = 4
const LABELS = { stale_if_error: "stale if error" }

/** Remembered while other views are open. */
export const memory = { history: new History(), last: null }

/** Take and remember one sample; fetch the samples that this page has missed from the gateway's history. */
export async function look(signal) {
  const [overview, { origins }, text] = await Promise.all([api.overview(signal), api.origins(signal), api.metrics(signal)])
  const sample = sampleOf(overview, buckets(text, DELAY))
  if (!memory.last || sample.at - memory.last.at > GAP_S) await catchUp(sample, signal)
  const point = add(sample)
  return { overview, origins, point, found: sample.delays }
}

/** Add the gateway's samples between the last one here and `now`, except any too close before `now` for a rate. */
async function catchUp(now, signal) {
  const seen = memory.last?.uptime_s <= now.uptime_s ? memory.last.at : 0
  for (const sample of samplesOf(await api.history(signal))) if (sample.at > seen && sample.at < now.at - LEAST_S) add(sample)
}

function add(sample) {
  const point = between(memory.last, sample)
  if (point) {
    const [now, before] = [sample.delays, memory.last.delays]
    point.delay = now && { p50: quantile(0.5, now, before), p99: quantile(0.99, now, before) }
    memory.history.add(point)
  }
  memory.last = sample
  return point
}

function figure(label, hint) {
  const value = h("strong", {}, "–")
  const more = h("small", {})
  return { element: h("div", { class: "figure", title: hint }, h("span", {}, label), value, more), value, more }
}

function card(title, hint, chart, wide) {
  return h("section", { class: wide ? "card wide" : "card" }, h("h2", { title: hint }, title), chart.element)
}

/** The view: an element, and a function for each refresh. */
export function overviewView() {
  const charts = {
    outcomes: new Chart({
      label: "Requests a second by outcome",
      isStacked: true,
      format: say_.rate,
      series: OUTCOMES.map((one) => ({ label: LABELS[one] ?? one, colour: `--o-${one.replaceAll("_", "-")}` })),
    }),
    origin: new Chart({
      label: "Client requests and origin requests a second",
      format: say_.rate,
      series: [{ label: "clients", colour: "--clients", isFilled: true }, { label: "origin", colour: "--origin" }],
    }),
    spared: new Chart({
      label: "Share of reads and of bytes that the origin was spared",
      format: say_.share,
      most: 1,
      series: [{ label: "of reads", colour: "--clients" }, { label: "of bytes", colour: "--o-followed", isDashed: true }],
    }),
    subscribers: new Chart({
      label: "Live subscribers",
      format: say_.count,
      isStacked: true,
      series: [{ label: "SSE", colour: "--o-followed" }, { label: "long-poll", colour: "--o-collapsed" }],
    }),
    delay: new Chart({
      label: "Delivery delay",
      format: say_.span,
      series: [{ label: "median", colour: "--clients" }, { label: "p99", colour: "--o-miss", isDashed: true }],
    }),
    bytes: new Chart({
      label: "Bytes a second to clients and from the origin",
      isBytes: true,
      format: (value) => say_.bytes(value),
      series: [{ label: "to clients", colour: "--clients", isFilled: true }, { label: "from the origin", colour: "--origin" }],
    }),
  }

  const clients = figure("client reads/s", "Reads that clients began in the last ten seconds: catch-up, long-poll, SSE, HEAD. Below, requests of all kinds that have ended.")
  const origin = figure("origin requests/s", "Requests sent to origins for reads in the same ten seconds, tail probes and retries included. Below, requests of all kinds.")
  const subscribers = figure("live readers", "Clients that wait on a long-poll or hold an SSE connection.")
  const followed = figure("streams followed", "Each costs the origin one live request, however many readers it has.")
  const reads = figure("reads spared", "1 − origin requests for reads ÷ reads that clients began. Below 0 the origin was asked more often than the gateway.")
  const bytes = figure("bytes spared", "1 − bytes from the origin ÷ bytes of answers before they were compressed.")
  const beam = h("div", { class: "beam", "aria-hidden": "true" }, h("i"), h("i"))
  const caption = h("p", { class: "caption" })
  const health = h("ul", { class: "health", "aria-label": "Origins" })
  const hero = h(
    "section",
    { class: "hero", "aria-label": "What the origin is spared" },
    h("div", { class: "hero-side" }, clients.element, subscribers.element),
    h("div", { class: "hero-middle" }, h("div", { class: "spared" }, reads.element, bytes.element), beam, caption),
    h("div", { class: "hero-side is-origin" }, origin.element, followed.element, health),
  )

  const delay = figure("delivery delay", "From the arrival of an append to its frames being written to every SSE reader.")
  const cache = figure("on tapes", "Stream bytes on tapes and in compressed copies.")
  const meter = h("meter", { min: 0, max: 1, high: 0.95, "aria-label": "Cache in use" })
  cache.element.append(meter)
  const trouble = figure("slow consumers, retries", "Live clients closed because they did not keep up; requests to origins tried again.")
  const sent = figure("sent to clients", "Body bytes since the start; below, those that came from the origin.")
  const figures = h("section", { class: "figures", "aria-label": "Figures" }, [delay, cache, sent, trouble].map((one) => one.element))

  const busiest = h("div", {})
  const noDelay = h("p", { class: "quiet" }, "Nothing was delivered to SSE readers yet.")
  const delayCard = card("Delivery delay", delay.element.title, charts.delay)
  delayCard.append(noDelay)

  const element = h(
    "div",
    { class: "overview" },
    h("h1", { class: "sr" }, "Overview"),
    hero,
    figures,
    h(
      "div",
      { class: "cards" },
      card("Requests by outcome", "Per second; live reads count when they end.", charts.outcomes, true),
      card("Clients and origin", "Requests a second.", charts.origin),
      card("Spared the origin", "Shares of reads and of bytes, each over the ten seconds before, without writes.", charts.spared),
      card("Live readers", subscribers.element.title, charts.subscribers),
      delayCard,
      h("section", { class: "card wide" }, h("h2", {}, "Busiest streams"), busiest),
      card("Bytes a second", "Bodies, without headers.", charts.bytes),
    ),
  )

  async function show(signal) {
    const { overview, origins, point, found } = await look(signal)
    const { history } = memory
    const times = history.points.map((one) => one.at)
    showSpared(overview)
    showHealth(origins)
    say(subscribers.value, say_.count(total(overview.subscribers)))
    say(subscribers.more, `${say_.count(overview.subscribers.sse)} SSE, ${say_.count(overview.subscribers.longpoll)} long-poll`)
    say(followed.value, say_.count(overview.followed_streams))
    say(followed.more, overview.followed_streams === 1 ? "one live request" : "one live request each")

    const whole = found && { p50: quantile(0.5, found), p99: quantile(0.99, found) }
    const delays = point?.delay?.p50 != null ? point.delay : whole
    say(delay.value, say_.span(delays?.p50))
    say(delay.more, delays?.p99 == null ? "nothing delivered yet" : `p99 ${say_.span(delays.p99)}`)
    noDelay.hidden = delays?.p50 != null
    charts.delay.element.hidden = !noDelay.hidden
    say(cache.value, say_.bytes(overview.cache.bytes))
    say(cache.more, `of ${say_.bytes(overview.cache.limit_bytes)}, ${say_.many(overview.cache.tapes, "tape")}, ${say_.many(overview.cache.evictions, "eviction")}`)
    meter.value = overview.cache.limit_bytes ? overview.cache.bytes / overview.cache.limit_bytes : 0
    say(sent.value, say_.bytes(overview.downstream_bytes))
    say(sent.more, `${say_.bytes(overview.upstream_bytes)} from the origin`)
    say(trouble.value, `${say_.count(overview.slow_consumers)}, ${say_.count(overview.retries)}`)
    say(trouble.more, say_.many(overview.connections, "connection"))

    charts.outcomes.show(times, OUTCOMES.map((one) => history.column((point) => point.outcomes[one])))
    charts.origin.show(times, [history.column((point) => point.clients), history.column((point) => point.origin)])
    charts.spared.show(times, [history.column((point) => point.requestsSpared), history.column((point) => point.bytesSpared)])
    charts.subscribers.show(times, [history.column((point) => point.subscribers.sse), history.column((point) => point.subscribers.longpoll)])
    charts.delay.show(times, [history.column((point) => point.delay?.p50), history.column((point) => point.delay?.p99)])
    charts.bytes.show(times, [history.column((point) => point.downstream), history.column((point) => point.upstream)])
    if (looks++ % LOOKS_PER_TOP === 0) await showBusiest(signal)
    return overview
  }

  let looks = 0

  async function showBusiest(signal) {
    const { streams } = await api.top("requests", 6, signal)
    if (isSelected(busiest)) return
    const focused = busiest.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null
    busiest.replaceChildren(streams.length ? table(streams, ["readers", "reads", "from memory", "sent"]) : h("p", { class: "quiet" }, "No stream has been read yet."))
    if (focused) busiest.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus()
  }

  /** The headline: both sides of each share cover the same seconds. */
  function showSpared({ spared, spared_since_start: whole, requests, upstream_requests }) {
    const rate = (n) => (spared.window_s > 0 ? n / spared.window_s : null)
    say(clients.value, say_.rate(rate(spared.reads)))
    say(clients.more, `${say_.count(total(Object.values(requests).map(total)))} requests since the start`)
    say(origin.value, say_.rate(rate(spared.origin_requests)))
    say(origin.more, `${say_.count(total(upstream_requests))} since the start`)
    say(reads.value, say_.share(spared.requests_spared))
    say(reads.more, `${say_.share(whole.requests_spared)} since the start`)
    say(bytes.value, say_.share(spared.bytes_spared))
    say(bytes.more, `${say_.share(whole.bytes_spared)} since the start`)
    const asked = spared.reads ? Math.min(1, spared.origin_requests / spared.reads) : 0
    beam.lastChild.setAttribute("class", `width-${spared.origin_requests ? Math.max(1, Math.round(asked * 20)) : 0}`)
    say(caption, spared.reads ? `What the origin did not have to answer and send in the last ${say_.span(spared.window_s)}; writes aside` : "No reads in the last seconds")
  }

  /** The state of the origins, with those that do not answer listed singly. */
  function showHealth(origins) {
    const line = (level, text) => h("li", { class: `is-${level}` }, text)
    const sick = origins.filter((one) => origins_.health(one) === "unreachable")
    const [first] = origins_.words(origins).split("; ")
    const lines = [line(origins_.worst(origins), first)]
    if (origins.length > 1) lines.push(...sick.slice(0, MOST_ORIGINS).map((one) => line("unreachable", `${one.origin} ${origins_.state(one)}`)))
    if (sick.length > MOST_ORIGINS) lines.push(line("unreachable", `and ${sick.length - MOST_ORIGINS} more`))
    const text = lines.map((one) => one.textContent).join("\n")
    if (health.dataset.text === text) return
    health.dataset.text = text
    health.replaceChildren(...lines)
  }

  return {
    element,
    show,
    period_ms: 1000,
    recolour: () => Object.values(charts).forEach((chart) => chart.recolour()),
    close: () => Object.values(charts).forEach((chart) => chart.close()),
  }
}
