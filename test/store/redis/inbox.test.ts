// Command inboxes on Redis, in addition to the contract: limits, expiry and freed memory, retries
// of incomplete commands, and large fan-outs.

import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { BrokerError } from "../../../src/broker/errors.ts";
import type { CommandDraft } from "../../../src/broker/ports.ts";
import { codeOf } from "../../contract/store-fixture.ts";
import { commandOf } from "../../contract/store-inbox.ts";
import {
  callsByCommand,
  commandCallsIn,
  LOG_ALL,
  resetCalls,
  startRedis,
  startRedisCluster,
} from "../../support/redis.ts";
import {
  copiesOf,
  freshPrefix,
  HOUR_S,
  PAGE,
  pendingIn,
  startInbox,
  ttlsOf,
} from "./inbox-bench.ts";
import { halfDone, retry, type Start, USERS } from "./inbox-half-done.ts";

const HOUR_MS = HOUR_S * 1000;
/** Recipients, more than one script handles. The last recipient is bob. */
const MANY = [...Array.from({ length: 64 }, (_, i) => `m${i}`), "bob"];

function bounds(t: Test, start: Start): void {
  t.test("a full inbox drops and counts its oldest copies", async (t) => {
    const bench = await start(t, { limits: { maxInbox: 5 } });
    const { inbox } = bench;
    for (let i = 0; i < 4; i++) await inbox.appendCommand(commandOf());
    t.equal(await inbox.acknowledgeCommands("bob", [2, 3]), 2);
    await Promise.all(
      Array.from({ length: 5 }, () =>
        inbox.appendCommand(commandOf({ recipients: ["bob", "carol"] })),
      ),
    );
    t.same(await bench.seqs("bob"), [5, 6, 7, 8, 9]);
    t.same(await bench.seqs("carol"), [1, 2, 3, 4, 5]);
    t.same(inbox.commands.counts, { commands: 9, duplicates: 0, dropped: 2 });
  });

  t.test("expired copies make room for new copies and are not counted as dropped", async (t) => {
    const bench = await start(t, { limits: { maxInbox: 3, inboxTtlS: 100 } });
    const { inbox, time } = bench;
    await inbox.appendCommand(commandOf());
    await inbox.appendCommand(commandOf({ expireS: 10 }));
    time.nowMs += 50_000;
    await inbox.appendCommand(commandOf());
    await inbox.appendCommand(commandOf());
    t.same(await bench.seqs("bob"), [1, 3, 4]);
    time.nowMs += 50_000;
    await inbox.appendCommand(commandOf());
    t.same(await bench.seqs("bob"), [3, 4, 5]);
    t.equal(inbox.commands.counts.dropped, 0);
  });

  t.test(
    "copies that have expired according to the clocks of the store and of Redis make room, and no other copy is dropped",
    async (t) => {
      const bench = await start(t, { limits: { maxInbox: 3, inboxTtlS: 100 } });
      const { inbox, time } = bench;
      await inbox.appendCommand(commandOf());
      for (let i = 0; i < 2; i++) await inbox.appendCommand(commandOf({ expireS: 1 }));
      time.nowMs += 1200;
      await pause(1200); // the keys expire by the clock of Redis
      await inbox.appendCommand(commandOf());
      t.same(await bench.seqs("bob"), [1, 4]);
      t.equal(inbox.commands.counts.dropped, 0);
    },
  );

  t.test("`acknowledgeCommands` does not count expired copies", async (t) => {
    const { inbox, time, seqs } = await start(t, { limits: { inboxTtlS: 60 } });
    await inbox.appendCommand(commandOf());
    await inbox.appendCommand(commandOf({ expireS: 1 }));
    time.nowMs += 59_999;
    t.same(await seqs("bob"), [1]);
    await inbox.appendCommand(commandOf());
    time.nowMs += 1;
    t.same(await seqs("bob"), [3]);
    t.equal(await inbox.acknowledgeCommands("bob", [1, 2, 3]), 1);
  });

  t.test("all keys of an idle inbox expire, except the key of its inboxSeq", async (t) => {
    const bench = await start(t, { limits: { inboxTtlS: 60 } });
    const { inbox } = bench;
    await inbox.appendCommand(commandOf({ expireS: 10 }));
    t.ok((await ttlsOf(bench, "bob")).copies <= 10_000);
    await inbox.appendCommand(commandOf({ recipients: MANY }));
    await inbox.appendCommand(commandOf());
    await inbox.appendCommand(commandOf({ expireS: 20 }));
    const ttls = await ttlsOf(bench, "bob");
    t.equal(ttls.seq, -1);
    t.ok(ttls.copies > 50_000 && ttls.copies <= 60_000, "the copies expire with the last one");
    t.ok(ttls.ends > 50_000 && ttls.ends <= 60_000, "so do the lists about them");
    t.ok(ttls.ids > HOUR_MS && ttls.ids <= HOUR_MS + 60_000);
  });

  t.test("an inbox stores the ids of commands with many recipients for an hour", async (t) => {
    const bench = await start(t);
    const { inbox, link, time } = bench;
    for (let i = 0; i < 96; i++) {
      await inbox.appendCommand(commandOf({ recipients: MANY }));
      time.nowMs += 60_000;
    }
    const key = link.keys.user("inboxIds", "bob");
    t.equal(await link.call("zcard", key), 60);
  });

  t.test(
    "an inbox stores the ids of its newest 1000 commands even if it contains fewer copies",
    async (t) => {
      const bench = await start(t, { limits: { maxInbox: 5 } });
      const { inbox, link, time } = bench;
      const ids = link.keys.user("inboxIds", "bob");
      const recent = Array.from({ length: 1000 }, (_, i) => [...[time.nowMs - 1, i + 1]]);
      await link.call("zadd", ids, ...recent.flat());
      for (let i = 0; i < 32; i++) await inbox.appendCommand(commandOf({ recipients: MANY }));
      t.equal(await link.call("zcard", ids), 1000);
      t.same(await bench.seqs("bob"), [28, 29, 30, 31, 32]);
    },
  );

  t.test("a key of the wrong type keeps only its own inbox from receiving copies", async (t) => {
    for (const part of ["inboxSeq", "inbox", "inboxExpiry", "inboxIds"]) {
      const bench = await start(t);
      const { inbox, link } = bench;
      const wrong = link.keys.user(part, "u9");
      await link.call("hset", wrong, "no", "inbox");
      const commandFor = (count: number) =>
        retry({
          ...{ clientMsgNo: `c-${count}`, expireS: 60 },
          recipients: Array.from({ length: count }, (_, i) => `u${i}`),
        });
      const [few, many] = [commandFor(10), commandFor(200)];
      const codes = [
        await codeOf(inbox.appendCommand(few)),
        await codeOf(inbox.appendCommand(many)),
      ];
      // On one server, a single script stores a command to few users and does not need this key.
      const fails = part !== "inboxIds" || link.isCluster;
      t.same(codes, [fails ? "internal" : undefined, "internal"], part);
      const copies = async () => {
        const all = await Promise.all(many.recipients.map(bench.seqs));
        return all.map((seqs) => seqs.length);
      };
      const expected = (bad: number) =>
        many.recipients.map((_, i) => (i === 9 ? bad : i < 9 ? 2 : 1));
      await link.call("rename", wrong, `${wrong}-aside`);
      t.same(await copies(), expected(fails ? 0 : 1), part);
      for (const draft of [few, many]) t.equal((await inbox.appendCommand(draft)).duplicate, true);
      t.same(
        await copies(),
        expected(2),
        `every recipient has its copies after the key ${part} was repaired`,
      );
      t.equal(await pendingIn(bench, "2:g"), 0);
    }
  });

  t.test(
    "commands above the limit of held bytes for all senders, or for one sender, are rejected",
    async (t) => {
      const { inbox } = await start(t);
      const payload = new Uint8Array(20 * 1024 * 1024);
      const draft = commandOf({ recipients: [], payload });
      const other = { ...draft, fromUid: "another" };
      const drafts = [draft, draft, draft, other, other];
      const calls = drafts.map((draft) => inbox.appendCommand(draft));
      const codes = await Promise.all(calls.map(codeOf));
      const full = "overloaded";
      t.same(codes, [undefined, undefined, full, undefined, full]);
      t.equal(await codeOf(inbox.appendCommand(commandOf())), undefined);
    },
  );
}

function atOnce(t: Test, start: Start): void {
  t.test(
    "a command sent on three nodes concurrently is stored once for each recipient",
    async (t) => {
      const prefix = freshPrefix();
      const nodes = await Promise.all([1, 2, 3].map(() => start(t, { prefix, users: ["u0"] })));
      for (let i = 0; i < 10; i++) {
        const draft = retry({ clientMsgNo: `c-${i}`, recipients: USERS });
        const answers = await Promise.all(
          nodes.map(async (node) => {
            const answer = await node.inbox.appendCommand(draft);
            await node.arrived();
            t.equal(copiesOf(node).length, i + 1, "the node's listener has every copy");
            return answer;
          }),
        );
        t.equal(new Set(answers.map(({ messageId }) => messageId)).size, 1);
        t.equal(answers.filter(({ duplicate }) => !duplicate).length, 1);
      }
      const [node] = nodes;
      for (const uid of USERS) t.same(await node?.seqs(uid), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    },
  );

  t.test("commands of two nodes arrive in the order of their inboxSeqs", async (t) => {
    const prefix = freshPrefix();
    const users = ["bob", "carol"];
    const nodes = await Promise.all([1, 2].map(() => start(t, { prefix, users })));
    await Promise.all(
      Array.from({ length: 100 }, (_, i) =>
        nodes[i % 2]?.inbox.appendCommand(
          commandOf({
            fromUid: `f${i % 3}`,
            channel: { id: `g${i % 5}`, type: 2 },
            recipients: users,
          }),
        ),
      ),
    );
    const expected = Array.from({ length: 100 }, (_, i) => i + 1);
    await Promise.all(nodes.map((node) => node.arrived()));
    for (const node of nodes)
      for (const uid of users)
        t.same(
          copiesOf(node)
            .filter((copy) => copy.uid === uid)
            .map(({ inboxSeq }) => inboxSeq),
          expected,
        );
  });

  t.test(
    "commands of a channel keep their order while other channels use up redis.maxInFlight",
    async (t) => {
      const bench = await start(t, { maxInFlight: 100 });
      const crowd = Array.from({ length: 200 }, (_, i) => `user-${i}`);
      const send = (id: string, recipients: readonly string[]) =>
        bench.inbox.appendCommand(commandOf({ channel: { id, type: 2 }, recipients }));
      const others = Array.from({ length: 20 }, (_, i) => send(`o${i}`, crowd));
      await Promise.race(others);
      const answers = [send("a", MANY), send("a", ["bob"])];
      const calls = (await Promise.all(answers)).map(({ messageId }) => messageId);
      await Promise.all(others);
      const inbox = await bench.inbox.readInbox("bob", 0, PAGE);
      t.same(
        inbox.map(({ message }) => message.messageId),
        calls,
      );
    },
  );

  t.test(
    "a command to 3,000 users does not exceed redis.maxInFlight, and small commands of other channels overtake it",
    async (t) => {
      const bench = await start(t, { maxInFlight: 100 });
      const recipients = Array.from({ length: 3000 }, (_, i) => `user-${i}`);
      const done: string[] = [];
      const send = async (id: string, to: readonly string[]) => {
        const channel = { id, type: 2 } as const;
        await bench.inbox.appendCommand(commandOf({ channel, recipients: to }));
        done.push(`${id} ${to.length}`);
      };
      await Promise.all([send("a", recipients), send("a", ["user-2999"]), send("b", ["user-0"])]);
      t.equal(done[0], "b 1");
      t.same(await bench.seqs("user-1500"), [1]);
      const last = await bench.inbox.readInbox("user-2999", 0, PAGE);
      const ids = last.map(({ message }) => message.messageId);
      t.same(
        ids,
        ids.toSorted((x, y) => x - y),
        "commands of one channel keep their order",
      );
    },
  );
}

const suites = (t: Test, start: Start): void => {
  bounds(t, start);
  halfDone(t, start);
  atOnce(t, start);
};

t.test("inboxes work on a single Redis server", async (t) => {
  const server = await startRedis(t);
  const { url } = server;
  suites(t, (t, over = {}) => startInbox(t, { url, ...over }));

  t.test(
    "a command to at most 16 users is stored by one script and is never pending",
    async (t) => {
      const own = await startRedis(t, LOG_ALL);
      const { inbox } = await startInbox(t, { url: own.url });
      const client = own.client();
      await resetCalls(client);
      const recipients = USERS.slice(0, 16);
      await inbox.appendCommand(retry({ recipients, pushOnlyRecipients: ["alice"] }));
      t.same(Object.fromEntries(await callsByCommand(client)), {
        ...{ evalsha: 1, get: 1, set: 2 },
        ...{ xlen: 17, incr: 16, xadd: 16, pexpire: 48, exists: 16, spublish: 17 },
      });
    },
  );

  t.test("a command to many users is stored in script calls of up to 16 copies each", async (t) => {
    const own = await startRedis(t, LOG_ALL);
    const { inbox } = await startInbox(t, { url: own.url });
    const client = own.client();
    await resetCalls(client);
    await inbox.appendCommand(commandOf({ recipients: MANY }));
    const calls = await callsByCommand(client);
    t.equal(calls.get("incr"), MANY.length, "each user gets a copy");
    const others = calls.get("xdel") ?? 0; // the script that removes the pending entry may be done
    t.equal((calls.get("evalsha") ?? 0) - others, 1 + Math.ceil(MANY.length / 16));
    t.equal(calls.get("set"), 1, "the first script only reserves the id");
  });

  t.test("adding a copy to a full inbox does not read all other copies", async (t) => {
    const { inbox, seqs } = await startInbox(t, { url, limits: { maxInbox: 50 } });
    const senders = [undefined, "s", "s", "s"] as const;
    const send = (at: number) => {
      const origin = senders[at % senders.length];
      return inbox.appendCommand(
        commandOf({ fromUid: `u${at % 7}`, origin, recipients: ["bob", "carol"] }),
      );
    };
    for (let at = 0; at < 60; at++) await send(at);
    const client = server.client();
    const before = await client.info("commandstats");
    for (let at = 0; at < 60; at++) await send(at);
    const after = await client.info("commandstats");
    const added = (name: string) => commandCallsIn(after, name) - commandCallsIn(before, name);
    t.equal(added("xadd"), 120);
    t.equal(added("hgetall"), 0);
    t.ok(added("xrange") <= 4 * 120 && added("hmget") <= 120, "only a few pages are read");
    t.equal((await seqs("bob")).length, 50);
  });

  t.test(
    "in a full inbox, a copy from a backend replaces the oldest backend copy without a scan of the users' copies",
    async (t) => {
      const limits = { maxInbox: 1000 };
      const { inbox, seqs } = await startInbox(t, { url, limits });
      const sendAll = (count: number, isUser = false) =>
        Promise.all(
          Array.from({ length: count }, (_, at) =>
            inbox.appendCommand(
              commandOf({ fromUid: `u${at % 5}`, origin: isUser ? "s" : undefined }),
            ),
          ),
        );
      await sendAll(1);
      await sendAll(450, true);
      await sendAll(550); // the last one drops the first copy, so the oldest copies are from users
      const client = server.client();
      const before = await client.info("commandstats");
      await sendAll(3);
      const after = await client.info("commandstats");
      for (const name of ["hmget", "hgetall", "hvals"])
        t.equal(commandCallsIn(after, name), commandCallsIn(before, name), `no ${name}`);
      const pages = commandCallsIn(after, "xrange") - commandCallsIn(before, "xrange");
      t.ok(pages <= 9, `${pages} pages of copies are read`);
      const oldest = (await seqs("bob")).slice(449, 452);
      t.same(oldest, [451, 455, 456], "the oldest copies of backends are dropped");
    },
  );

  t.test("interrupted and retried commands reach each recipient once", async (t) => {
    const bench = await startInbox(t, { url });
    const client = server.client();
    const sendUntilAccepted = async (draft: CommandDraft): Promise<number> => {
      for (let cuts = 0; ; cuts++)
        try {
          await bench.inbox.appendCommand(draft);
          return cuts;
        } catch (error) {
          if (!(error instanceof BrokerError && error.code === "unavailable")) throw error;
          await new Promise((resolve) => setTimeout(resolve, 10));
        }
    };
    const recipients = Array.from({ length: 400 }, (_, i) => `u${i}`);
    let cuts = 0;
    for (let round = 0; round < 5; round++) {
      const calls = Array.from({ length: 10 }, (_, i) =>
        sendUntilAccepted(retry({ clientMsgNo: `${round}-${i}`, recipients })),
      );
      await new Promise(setImmediate);
      await client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
      for (const count of await Promise.all(calls)) cuts += count;
    }
    t.ok(cuts > 0, "some calls were interrupted");
    for (const uid of ["u0", "u200", "u399"]) {
      const nos = (await bench.inbox.readInbox(uid, 0, PAGE)).map(
        ({ message }) => message.clientMsgNo,
      );
      t.equal(nos.length, 50);
      t.equal(new Set(nos).size, 50);
    }
  });
});

t.test("inboxes work on a Redis Cluster", async (t) => {
  const { url } = await startRedisCluster(t);
  suites(t, (t, over = {}) => startInbox(t, { url, ...over }));
});
