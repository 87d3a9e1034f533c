// Runs the contract of logs against the embedded driver.

import type { Test } from "tap";
import type { LogEvent, LogLimits } from "../../../src/broker/log-ports.ts";
import type { LogFixture } from "../../contract/log-fixture.ts";
import { logContract } from "../../contract/store-logs.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { t } from "../../support/suite.ts";
import { logRowsIn, storeIn, testFolder } from "./folder.ts";

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

logContract(t, { name: "embedded", open: openFixture });
