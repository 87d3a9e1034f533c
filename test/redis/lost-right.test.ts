// A node whose Redis user loses an ACL permission while the node runs. Each case takes permissions
// away from a real user of a real server.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { startBroker, textPayload } from "../support/broker.ts";
import { startRedis } from "../support/redis.ts";

const USER = "jindou";

t.test(
  "a running node that loses a Redis ACL permission is not ready until it has the permission again",
  async (t) => {
    const redis = await startRedis(t);
    const client = redis.client();
    await client.call("ACL", "SETUSER", USER, "on", ">hunter2", "~*", "&*", "+@all");
    const url = redis.url.replace("redis://", `redis://${USER}:hunter2@`);
    const settings = { JINDOU_LOG_LEVEL: "silent", JINDOU_REDIS_URL: url };
    const broker = await startBroker(t, settings);
    const group = { channel_id: "team", channel_type: 2 };
    await broker.call("/channel", { ...group, subscribers: ["alice"] });
    const send = async (fields = {}) => {
      const message = { ...group, from_uid: "alice", payload: textPayload("hello"), ...fields };
      return (await broker.call("/message/send", message)).status;
    };
    const losses = [
      { loss: ["-spublish"], grant: "+spublish" },
      { loss: ["-xadd"], grant: "+xadd" },
      { loss: ["-evalsha"], grant: "+evalsha" },
      { loss: ["resetchannels"], grant: "&jd:*" },
      { loss: ["resetkeys", "%R~*"], grant: "~jd:*" },
      { loss: ["-spublish"], grant: "+spublish", fields: { header: { sync_once: 1 } } },
    ];
    for (const { loss, grant, fields } of losses) {
      while ((await send(fields)) !== 200) await pause(50);
      await client.call("ACL", "SETUSER", USER, ...loss);
      const statuses = new Set<number>();
      let reason = "";
      while (!reason.includes("its user jindou may not use")) {
        statuses.add(await send(fields));
        reason = String((await broker.call("/readyz")).body.error);
      }
      t.same([...statuses], [503], `${loss}`);
      const rights = /ACL SETUSER jindou (.+)$/.exec(reason)?.[1]?.split(" ") ?? [];
      t.ok(rights.includes(grant), reason);
      await client.call("ACL", "SETUSER", USER, ...rights);
      while ((await broker.call("/readyz")).status !== 200) await pause(50);
    }
  },
);

t.test(
  "an import is answered with 503 if the Redis user may not use SCAN, and the node reports the missing permission",
  async (t) => {
    const redis = await startRedis(t);
    const client = redis.client();
    await client.call("ACL", "SETUSER", USER, "on", ">hunter2", "~*", "&*", "+@all");
    const url = redis.url.replace("redis://", `redis://${USER}:hunter2@`);
    const broker = await startBroker(t, { JINDOU_LOG_LEVEL: "silent", JINDOU_REDIS_URL: url });
    await client.call("ACL", "SETUSER", USER, "-scan");
    t.equal((await broker.call("/admin/import/open", {})).status, 503);
    let reason = "";
    while (!reason.includes("its user jindou may not use"))
      reason = String((await broker.call("/readyz")).body.error);
    t.match(reason, /its user jindou may not use the commands SCAN\. .*SETUSER jindou \+scan$/);
    await client.call("ACL", "SETUSER", USER, "+scan");
    while ((await broker.call("/readyz")).status !== 200) await pause(50);
    t.equal((await broker.call("/admin/import/open", {})).status, 200);
  },
);
