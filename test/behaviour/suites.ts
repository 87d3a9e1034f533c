// The behaviour tests by what they are about, and how each runs again, unchanged, where the broker
// is something else: three nodes on one Redis that sessions and calls are spread over, where every
// other session speaks JSON-RPC. What is about one node runs on one there (driver.ts).

import { basename } from "node:path";
import type { Test } from "tap";
import type { Driver } from "../support/driver.ts";
import { runFiles } from "../support/suite.ts";

export const SUITES = {
  people: [
    "channels",
    "connections",
    "control",
    "format-rules",
    "formats",
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
    "system-accounts",
    "users",
    "wkproto",
    "wukongim",
    "wukongim-sdk",
  ],
  messages: [
    "commands",
    "conversation-calls",
    "conversations",
    "deduplication",
    "jsonrpc",
    "history",
    "message-sync",
    "messages",
    "payloads",
    "resume",
  ],
  streams: ["event-fields", "events", "stream-lives", "stream-reading", "streams", "viewers"],
} as const;

/** Runs the suites one after the other in this process. */
export async function runSuites(
  t: Test,
  driver: Driver,
  about: keyof typeof SUITES,
): Promise<void> {
  process.env.JINDOU_TEST_DRIVER = driver; // read when the files are loaded
  if (driver === "three") process.env.JINDOU_TEST_FORMAT ??= "mixed";
  const files = SUITES[about].map((name) => new URL(`./${name}.test.ts`, import.meta.url));
  await runFiles(t, files, ({ pathname }) => `${basename(pathname, ".test.ts")}, ${driver}`);
}
