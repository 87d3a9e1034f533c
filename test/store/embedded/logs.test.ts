// Runs the contract of logs against the embedded driver.

import { join } from "node:path";
import { open } from "lmdb";
import type { Test } from "tap";
import type { LogEvent, LogLimits } from "../../../src/broker/log-ports.ts";
import type { LogFixture } from "../../contract/log-fixture.ts";
import { logContract } from "../../contract/store-logs.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { t } from "../../support/suite.ts";
import { storeIn, testFolder } from "./folder.ts";

async function openFixture(t: Test, limits: Partial<LogLimits> = {}): Promise<LogFixture> {
  const folder = testFolder(t);
  const events: LogEvent[] = [];
  let nowMs = Date.UTC(2040, 0, 1);
  const create = () =>
    storeIn(folder, {
      logs: { ...LOG_LIMITS, ...limits },
      clock: () => nowMs,
      publisher: {
        publish(event) {
          if (event.kind === "log") events.push(event);
        },
      },
    });
  let store = create();
  await store.start();
  t.teardown(() => store.close());
  return {
    get store() {
      return store;
    },
    events,
    now: () => nowMs,
    advance(ms) {
      nowMs += ms;
    },
    async reopen() {
      await store.close();
      store = create();
      await store.start();
    },
    async sweep() {
      await store.checkpoint();
      await store.sweep();
      await store.checkpoint();
    },
    leftovers: async () => logRowsIn(folder),
  };
}

const TABLES = ["logNames", "logHeads", "logFrames", "logProducers", "logExpiry"];

/** Returns the names of the tables with rows of logs, each name once for each row. */
async function logRowsIn(folder: string): Promise<readonly string[]> {
  const env = open({ path: join(folder, "lmdb"), maxDbs: 48, readOnly: true });
  try {
    return TABLES.flatMap((name) => {
      const table = env.openDB({ name, keyEncoding: "binary" });
      return [...table.getKeys({})].map(() => name);
    });
  } finally {
    await env.close();
  }
}

logContract(t, { name: "embedded", open: openFixture });
