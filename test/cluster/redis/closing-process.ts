// A process that opens what a node has to Redis, closes it again when it is told to, and is then
// kept alive by nothing of its own. argv: the RedisSettings as JSON.

import { once } from "node:events";
import { setTimeout as pause } from "node:timers/promises";
import { groupTopic } from "../../../src/broker/model.ts";
import type { RedisSettings } from "../../../src/redis/client.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { startWholeNode } from "./whole-node.ts";

/** Links look at the map of slots from time to time: some of these do so at any moment. */
const LINKS = 8;
const APART_MS = 250;
const TOPICS = 30;

const settings = JSON.parse(process.argv[2] ?? "{}") as RedisSettings;
const parts = { name: "closing", onError: () => {} };
const links: RedisLink[] = [];
for (let at = 0; at < LINKS; at++) {
  const link = new RedisLink(settings, parts);
  await link.start();
  links.push(link);
  await pause(APART_MS);
}
const node = await startWholeNode({
  ...{ nodeId: "closing", settings, heartbeatMs: 500, deadAfterMs: 60_000 },
});
process.send?.("open");

await once(process, "message");
const topics = Array.from({ length: TOPICS }, (_, at) => groupTopic(`g${at}`));
const listening = topics.map((topic) => node.cluster.listen(topic));
void Promise.allSettled(listening); // a call that is tried again keeps no process alive
process.send?.("listening");

await once(process, "message");
await Promise.all([node.close(), ...links.map((link) => link.close())]);
process.send?.("closed");
process.disconnect();
