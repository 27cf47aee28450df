// Databases kept in step by one stream: `@durable-streams/state` with TanStack DB.
//
//   {"do": "open", "url", "live", "databases"}   new databases on the stream; done when each has what there is
//   {"do": "write", "rows"}                      every database adds, changes and removes rows of its own by optimistic
//                                                actions; done when all have what comes of it
//   {"do": "close", "databases"}                 by number, from 0
//   {"do": "contents"}                           what each database holds, and a live query over it

import { createStateSchema } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"
import { createLiveQueryCollection, eq } from "@tanstack/db"

import { Conditions, obey } from "./commands.mjs"

const conditions = new Conditions()

const isUser = (value) => typeof value?.id === "string" && typeof value?.name === "string"
const users = createStateSchema({
  users: {
    type: "user",
    primaryKey: "id",
    schema: {
      "~standard": {
        version: 1,
        vendor: "tests",
        validate: (value) => (isUser(value) ? { value } : { issues: [{ message: "not a user" }] }),
      },
    },
  },
})

const actions = ({ db, stream }) => {
  const collection = db.collections.users
  const written = async (event) => {
    await stream.append(JSON.stringify(event))
    await db.utils.awaitTxId(event.headers.txid, 20_000)
  }
  const headers = () => ({ txid: crypto.randomUUID() })
  return {
    add: {
      onMutate: (user) => collection.insert(user),
      mutationFn: (user) => written(users.users.insert({ value: user, headers: headers() })),
    },
    rename: {
      onMutate: ({ id, name }) => collection.update(id, (draft) => void (draft.name = name)),
      mutationFn: ({ id, name, isActive }) =>
        written(users.users.update({ value: { id, name, isActive }, headers: headers() })),
    },
    remove: {
      onMutate: ({ id }) => collection.delete(id),
      mutationFn: ({ id }) => written(users.users.delete({ key: id, headers: headers() })),
    },
  }
}

const databases = []
const wanted = new Map()

const open = ({ url, live }) => {
  const events = []
  const db = createStreamDB({
    streamOptions: { url, contentType: "application/json" },
    live,
    state: users,
    actions,
    onEvent: (event) => events.push(`${event.headers.operation} ${event.key}`),
    onBatch: conditions.changed,
  })
  const active = createLiveQueryCollection({
    startSync: true,
    query: (query) => query.from({ user: db.collections.users }).where(({ user }) => eq(user.isActive, true)),
  })
  const one = { db, active, events, name: `d${databases.length}`, isOpen: true, rows: 0 }
  db.collections.users.subscribeChanges(conditions.changed)
  active.subscribeChanges(conditions.changed)
  databases.push(one)
  return one
}

const sorted = (rows) =>
  [...rows].map(({ id, name, isActive }) => ({ id, name, isActive })).sort((a, b) => (a.id < b.id ? -1 : 1))
const isInStep = ({ db, active }) => {
  const rows = sorted(wanted.values())
  const isActive = rows.filter(({ isActive }) => isActive)
  return (
    JSON.stringify(sorted(db.collections.users.toArray)) === JSON.stringify(rows) &&
    JSON.stringify(sorted(active.toArray)) === JSON.stringify(isActive)
  )
}
const allInStep = () => conditions.until(() => databases.every((one) => !one.isOpen || isInStep(one)))

const work = async ({ db, name }, first, rows) => {
  for (let number = first; number < first + rows; number += 1) {
    const user = { id: `${name}:${number}`, name: "new", isActive: number % 2 === 0 }
    await db.actions.add(user).isPersisted.promise
    wanted.set(user.id, user)
    if (number % 3 === 1) {
      await db.actions.rename({ ...user, name: "renamed" }).isPersisted.promise
      wanted.set(user.id, { ...user, name: "renamed" })
    } else if (number % 3 === 2) {
      await db.actions.remove(user).isPersisted.promise
      wanted.delete(user.id)
    }
  }
}

const commands = {
  async open({ databases: count, ...where }) {
    const opening = Array.from({ length: count }, () => open(where))
    await Promise.all(opening.map(({ db }) => db.preload()))
    await allInStep()
  },
  async write({ rows }) {
    await Promise.all(
      databases.filter(({ isOpen }) => isOpen).map((one) => work(one, (one.rows += rows) - rows, rows))
    )
    await allInStep()
  },
  async close({ databases: numbers }) {
    for (const number of numbers) {
      databases[number].isOpen = false
      databases[number].db.close()
    }
  },
  async contents() {
    const have = ({ db, active, events }) => ({
      users: sorted(db.collections.users.toArray),
      active: sorted(active.toArray),
      events,
    })
    return { databases: databases.filter(({ isOpen }) => isOpen).map(have) }
  },
}

await obey(commands)
process.exit(0)
