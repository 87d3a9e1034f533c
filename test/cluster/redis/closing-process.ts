// A process for closing.test.ts: opens the connections of a node, closes them on request, and must
// then end by itself. Its argument is a RedisSettings as JSON.

import { once } from "node:events";
import { setTimeout as pause } from "node:timers/promises";
import { groupTopic } from "../../../src/broker/model.ts";
import type { RedisSettings } from "../../../src/redis/client.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { startWholeNode } from "./whole-node.ts";

/**
 * Number of links. Each link reads the slots regularly. The links are started at intervals, so that
 * some link is always about to read the slots.
 */
const LINKS = 8;
const START_INTERVAL_MS = 250;
const TOPICS = 30;

const settings = JSON.parse(process.argv[2] ?? "{}") as RedisSettings;
const linkOptions = { name: "closing", onError: () => {} };
const links: RedisLink[] = [];
for (let at = 0; at < LINKS; at++) {
  const link = new RedisLink(settings, linkOptions);
  await link.start();
  links.push(link);
  await pause(START_INTERVAL_MS);
}
const node = await startWholeNode({
  ...{ nodeId: "closing", settings, heartbeatMs: 500, deadAfterMs: 60_000 },
});
process.send?.("open");

await once(process, "message");
const topics = Array.from({ length: TOPICS }, (_, at) => groupTopic(`g${at}`));
const listening = topics.map((topic) => node.cluster.listen(topic));
void Promise.allSettled(listening); // the servers may be down; the node retries until it is closed
process.send?.("listening");

await once(process, "message");
await Promise.all([node.close(), ...links.map((link) => link.close())]);
process.send?.("closed");
process.disconnect();
