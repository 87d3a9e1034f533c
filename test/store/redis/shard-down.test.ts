// A Redis Cluster of which one server is away: what does not need it goes on.

import t from "tap";
import { slotOf } from "../../../src/redis/slots.ts";
import { claim } from "../../../src/store/redis/inbox-claims.ts";
import { FanOut } from "../../../src/store/redis/inbox-fanout.ts";
import { notedCommand } from "../../../src/store/redis/inbox-record.ts";
import { codeOf, draftOf } from "../../contract/store-bench.ts";
import { commandOf } from "../../contract/store-inbox.ts";
import { startRedisCluster } from "../../support/redis.ts";
import { openStore } from "./one-store.ts";

const SHARE = Math.ceil(16_384 / 3);
const PAGE = { limit: 10, maxBytes: 1_000_000 };
const MINUTES_MS = 120_000;

const servers = await startRedisCluster(t);

/** The first name of `prefix` and a number whose key the first server has. */
function nameAtFirst(prefix: string, keyOf: (name: string) => string): string {
  for (let n = 0; ; n++)
    if (slotOf(keyOf(`${prefix}${n}`)) < SHARE) return `${prefix}${n}`;
}

t.test("copies that come too late end by themselves", async (t) => {
  const { link, time } = await openStore(t, servers.url);
  const limits = {
    ...{ dedupeWindowS: 3600, retentionS: 0, sweepIntervalMs: 1000 },
    ...{ maxStreamBytes: 1000, maxInbox: 10, inboxTtlS: 10 },
  };
  const fanOut = new FanOut({ link, clock: () => time.nowMs, limits });
  const noted = notedCommand(commandOf({ expireS: 1 }), time.nowMs, 10_000);
  time.nowMs += 5000;
  await fanOut.spread({ ...noted, messageId: 7 });
  for (const part of ["in", "inx"])
    t.not(await link.call("pttl", link.keys.user(part, "bob")), -1, part);
});

t.test("commands there are finished, and messages removed", async (t) => {
  const settings = { timeoutMs: 1000 };
  const one = await openStore(t, servers.url, { settings });
  const { store, link, time, problems } = one;
  const id = nameAtFirst("g", (name) => link.keys.channel("head", `2:${name}`));
  const uid = nameAtFirst("u", (name) => link.keys.user("in", name));
  const channel = { id, type: 2 } as const;
  const command = commandOf({ channel, recipients: [uid] });
  const limits = { dedupeWindowS: 3600 } as Parameters<
    typeof claim
  >[0]["limits"];
  await claim(
    { link, limits, onProblem: (error) => problems.push(error) },
    command,
    {
      command: notedCommand(command, time.nowMs, 3_600_000),
      nowMs: time.nowMs,
    },
  ); // its node died here
  await store.append(draftOf({ channel, expireS: 10 }));
  await servers.primaries[2]?.stop("SIGKILL");
  time.nowMs += MINUTES_MS;
  t.equal(await codeOf(store.sweep()), "unavailable");
  t.equal((await store.readInbox(uid, 0, PAGE)).length, 1);
  t.equal(await link.call("xlen", link.keys.channel("log", `2:${id}`)), 0);
});
