// The page: the current view and its refresh period, the theme, the keys, and the token dialog.

import * as api from "./api.js"
import { say } from "./dom.js"
import { span } from "./format.js"
import { overviewView } from "./overview.js"
import { streamView } from "./stream.js"
import { streamsView } from "./streams.js"
import { tailView } from "./tail.js"

const $ = (id) => document.getElementById(id)
const THEMES = ["auto", "light", "dark"]
const VIEWS = ["#/", "#/streams", "#/tail"]
const KEY = "durable-gateway.theme"

let about = null
let view = null
let looking = null
let timer = 0

// -- refreshing

/** Refresh now, and again after the view's period.  Refreshes never overlap, and stop while the tab is hidden. */
async function look() {
  clearTimeout(timer)
  looking?.abort()
  if (document.hidden || !view?.show) return
  const own = new AbortController()
  looking = own
  const shown = view
  const bound = AbortSignal.any([own.signal, AbortSignal.timeout(10_000)])
  try {
    const overview = await shown.show(bound)
    if (own.signal.aborted) return
    tell(overview?.is_draining ? "draining" : "live", overview && `version ${overview.version}, up for ${span(overview.uptime_s)}`)
  } catch (error) {
    if (own.signal.aborted) return
    tell(error instanceof api.Refused ? `refused: ${error.message}` : "not reachable")
  }
  timer = setTimeout(look, shown.period_ms)
}

function tell(word, more) {
  $("state").dataset.state = word.split(":")[0]
  say($("state"), word)
  if (more) $("state").title = more
}

// -- views

async function route() {
  const [path, query] = location.hash.replace(/^#?\/?/, "").split("?")
  const [name, id] = path.split("/")
  const parameters = new URLSearchParams(query)
  view?.close?.()
  looking?.abort()
  if (!about) return
  const current = name === "streams" ? "streams" : name === "tail" ? "tail" : "overview"
  document.title = `${current[0].toUpperCase()}${current.slice(1)} · ${about.node}`
  if (current === "streams") view = id ? streamView(decodeURIComponent(id), about) : streamsView(parameters)
  else view = current === "tail" ? tailView(parameters, about) : overviewView()
  view.onRefresh?.(look)
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === current) link.setAttribute("aria-current", "page")
    else link.removeAttribute("aria-current")
  }
  $("view").replaceChildren(view.element)
  // Begin at the top.  On a phone, a stream would otherwise open at the last view's position.
  scrollTo(0, 0)
  if (!view.show) tell("live")
  await look()
}

// -- theme

function setTheme(theme) {
  const root = document.documentElement
  if (theme === "auto") delete root.dataset.theme
  else root.dataset.theme = theme
  localStorage.setItem(KEY, theme)
  say($("theme"), theme[0].toUpperCase() + theme.slice(1))
  view?.recolour?.()
}

const nextTheme = () => setTheme(THEMES[(THEMES.indexOf(localStorage.getItem(KEY) ?? "auto") + 1) % THEMES.length])

// -- keys

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur()
    return
  }
  if (document.querySelector("dialog[open]")) return
  const own = view?.keys?.[event.key]
  if (own) own()
  else if (event.key === "t") nextTheme()
  else if (event.key === "?") $("keys-dialog").showModal()
  else if (event.key === "/" && view?.search) {
    event.preventDefault()
    view.search.focus()
    view.search.select()
  } else if (VIEWS[Number(event.key) - 1]) location.hash = VIEWS[Number(event.key) - 1]
}

// -- token

let asking = null

/** Ask for the token, once for all pending requests. */
function askForToken(wasWrong) {
  asking ??= new Promise((resolve) => {
    say($("token-error"), wasWrong ? "That was not it." : "")
    $("token-form").onsubmit = (event) => {
      event.preventDefault()
      api.setToken($("token").value.trim())
      $("token").value = ""
      $("token-dialog").close()
      asking = null
      resolve()
    }
    $("token-dialog").oncancel = (event) => event.preventDefault()
    $("token-dialog").showModal()
  })
  return asking
}

async function begin() {
  setTheme(THEMES.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "auto")
  api.whenLocked(askForToken)
  addEventListener("hashchange", route)
  addEventListener("keydown", key)
  document.addEventListener("visibilitychange", look)
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view?.recolour?.())
  $("theme").addEventListener("click", nextTheme)
  $("keys").addEventListener("click", () => $("keys-dialog").showModal())
  for (;;) {
    try {
      about = await api.about()
      break
    } catch (error) {
      tell(error instanceof api.Refused ? `refused: ${error.message}` : "not reachable")
      await new Promise((resolve) => setTimeout(resolve, 2000))
    }
  }
  say($("node"), about.node)
  await route()
}

begin()
