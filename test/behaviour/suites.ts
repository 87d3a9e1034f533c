// The behaviour tests by subject, and how to run them again, unchanged, on three nodes on one
// Redis. In these runs, sessions and calls are spread over the nodes and every other session speaks
// JSON-RPC. Tests about a single node run on one node in both cases (driver.ts).

import { basename } from "node:path";
import type { Test } from "tap";
import type { Driver } from "../support/driver.ts";
import { runFiles } from "../support/suite.ts";
import { IS_FULL } from "../support/volume.ts";

export const SUITES = {
  people: [
    "api-guessing",
    "bans",
    "channels",
    "connect-hook",
    "connections",
    "control",
    "format-rules",
    "formats",
    "guessing",
    "imports",
    "jwt",
    "trusted-proxies",
    "limits",
    "listeners",
    "managers",
    "members",
    "nodes",
    "operators",
    "permissions",
    "presence",
    "protected-mode",
    "refresh",
    "sessions",
    "system",
    "system-accounts",
    "users",
    "wkproto",
    "wkproto-listener",
    "wukongim",
    "wukongim-copies",
    "wukongim-reads",
    "wukongim-sdk",
    "wukongim-streams",
  ],
  messages: [
    "commands",
    "conversation-calls",
    "conversation-pages",
    "conversations",
    "deduplication",
    "event-feed",
    "reused-numbers",
    "jsonrpc",
    "jsonrpc-requests",
    "history",
    "message-sync",
    "messages",
    "payloads",
    "push",
    "resume",
    "send-hook",
  ],
  streams: [
    "client-events",
    "event-fields",
    "events",
    "stream-lives",
    "stream-reading",
    "streams",
    "viewers",
  ],
} as const;

/** Suites that depend most on the transport, and those about the formats of sockets. */
export const PORTABLE = [
  "connections",
  "formats",
  "format-rules",
  "jsonrpc",
  "jsonrpc-requests",
  "wkproto",
  "wkproto-listener",
  "listeners",
  "trusted-proxies",
  "protected-mode",
  "limits",
  "resume",
  "streams",
  "viewers",
] as const satisfies readonly Suite[];

/**
 * Suites about the listeners of one process, the limits of one connection, and the form of requests
 * and payloads. The number of nodes does not affect them.
 */
const OF_ONE_PROCESS: readonly Suite[] = [
  "connections",
  "jsonrpc",
  "jsonrpc-requests",
  "limits",
  "listeners",
  "payloads",
  "protected-mode",
  "trusted-proxies",
  "wkproto-listener",
];

type Suite = (typeof SUITES)[keyof typeof SUITES][number];

/**
 * Runs the suites one after the other in this process. Suites of `OF_ONE_PROCESS` run on three
 * nodes only with JINDOU_TEST_VOLUME=full.
 */
export async function runSuites(
  t: Test,
  driver: Driver,
  about: keyof typeof SUITES,
): Promise<void> {
  const isLeftOut = (name: Suite) =>
    driver === "three" && OF_ONE_PROCESS.includes(name) && !IS_FULL;
  await runFilesOf(
    t,
    driver,
    SUITES[about].filter((name) => !isLeftOut(name)),
  );
}

export async function runFilesOf(t: Test, driver: Driver, names: readonly Suite[]): Promise<void> {
  process.env.JINDOU_TEST_DRIVER = driver; // read when the test files are loaded
  if (driver === "three") process.env.JINDOU_TEST_FORMAT ??= "mixed";
  const files = names.map((name) => new URL(`./${name}.test.ts`, import.meta.url));
  await runFiles(t, files, ({ pathname }) => `${basename(pathname, ".test.ts")}, ${driver}`);
}
