import { defineConfig } from "vitest/config"

export default defineConfig({
  test: {
    include: ["*.test.mjs"],
    // One file, one process: the machines this runs on are small, and the suite measures time.
    pool: "forks",
    fileParallelism: false,
    watch: false,
    // A busy machine is no fault of a server's.
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
})
