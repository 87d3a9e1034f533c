// The behaviour tests by what they are about, and how each runs again, unchanged, where the broker is something else: three nodes on one Redis that
// sessions and calls are spread over. What is about one node runs on one there (driver.ts).

import type { Test } from "tap";
import { compiledUrl } from "../support/child.ts";
import type { Driver } from "../support/driver.ts";
import { within } from "./suite.ts";

export const SUITES = {
  people: [
    "channels",
    "connections",
    "guessing",
    "limits",
    "listeners",
    "managers",
    "nodes",
    "permissions",
    "presence",
    "protected-mode",
    "sessions",
    "system",
    "users",
  ],
  messages: [
    "commands",
    "conversation-calls",
    "conversations",
    "deduplication",
    "history",
    "messages",
    "payloads",
    "resume",
  ],
  streams: [
    "event-fields",
    "events",
    "stream-lives",
    "stream-reading",
    "streams",
    "viewers",
  ],
} as const;

/** Longest that one of them may take, on a machine that is busy with other tests. */
const SUITE_MS = 900_000;

/** Runs the suites one after the other in this process: loading a broker's code anew for each would take longer than the tests do. */
export async function runSuites(
  t: Test,
  driver: Driver,
  about: keyof typeof SUITES,
): Promise<void> {
  t.setTimeout(0); // each suite has its own
  process.env.JINDOU_TEST_DRIVER = driver; // read when the files are loaded
  for (const name of SUITES[about])
    await t.test(`${name}, ${driver}`, { timeout: SUITE_MS }, (suite) =>
      within(
        suite,
        () =>
          import(compiledUrl(new URL(`./${name}.test.ts`, import.meta.url))),
      ),
    );
}
