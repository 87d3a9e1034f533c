// The behaviour tests by what they are about, and how each runs again, unchanged, where the broker is something else: one node on Redis, or
// three nodes that sessions and calls are spread over.

import { fileURLToPath } from "node:url";
import type { Test } from "tap";
import type { Driver } from "../support/driver.ts";

export const SUITES = {
  people: [
    "channels",
    "connections",
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

/** Runs the suites one after the other, each as a process of its own. */
export async function runSuites(
  t: Test,
  driver: Driver,
  about: keyof typeof SUITES,
): Promise<void> {
  t.setTimeout(0); // each test in it has its own
  const env = { ...process.env, JINDOU_TEST_DRIVER: driver };
  for (const name of SUITES[about]) {
    const file = new URL(`./${name}.test.ts`, import.meta.url);
    const args = ["--import=tsx", fileURLToPath(file)];
    await t.spawn(process.execPath, args, { env }, `${name}, ${driver}`);
  }
}
