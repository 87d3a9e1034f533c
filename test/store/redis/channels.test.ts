// Channels and members on Redis, beside the contract: the index of a user's groups, which survives
// readers and writers at once, pages of large groups, what members leave behind.

import t, { type Test } from "tap";
import { BrokerError } from "../../../src/broker/errors.ts";
import type { RedisLink } from "../../../src/redis/link.ts";
import { codeOf, group, PERMANENT, person, TEMPORARY } from "../../contract/store-fixture.ts";
import { type RedisServer, startRedis } from "../../support/redis.ts";
import { type ControlStore, startControl } from "./control.ts";

t.test("one server", async (t) => {
  const server = await startRedis(t);
  t.test("the index of a user's groups", (t) => index(t, server.url));
  t.test("what is kept of members", (t) => keptOfMembers(t, server.url));
  t.test("odd ids", (t) => oddIds(t, server.url));

  t.test("all members of a large group are listed while others come and go", async (t) => {
    const { store } = await startControl(t, server.url);
    const uids = Array.from({ length: 12_000 }, (_, i) => `user-${i}`);
    await store.createChannel(group("g"), uids);
    await store.addSubscribers(group("g"), ["user-1", "extra"], TEMPORARY);
    const [listed] = await Promise.all([
      store.members(group("g")),
      store.addSubscribers(group("g"), ["late-1", "late-2"], PERMANENT),
    ]);
    const found = new Set(listed);
    t.equal(found.size, listed.length, "each once");
    t.same(
      [...uids, "extra"].filter((uid) => !found.has(uid)),
      [],
      "who is a member all the time is listed",
    );
    t.same(
      listed.filter((uid) => !/^(user-\d+|extra|late-\d)$/.test(uid)),
      [],
    );
  });

  t.test("replaced lists", (t) => replacedLists(t, server));

  t.test("a record of a newer format is refused, not misread", async (t) => {
    const { store, keys } = await startControl(t, server.url);
    await store.createChannel(group("g"), ["a"]);
    const client = server.client();
    await client.hset(keys.channel("head", "2:g"), "info", 2 * 256);
    t.equal(await codeOf(store.channel(group("g"))), "internal");
    t.equal(await codeOf(store.addSubscribers(group("g"), ["b"], PERMANENT)), "internal");
  });

  t.test("a change is told when the replicas have it, and refused when they do not", async (t) => {
    const missing = new BrokerError("unavailable");
    let replicas: "there" | "gone" = "there";
    const { store } = await startControl(t, server.url, {
      waitForReplicas: async () => {
        if (replicas === "gone") throw missing;
      },
    });
    await store.createChannel(group("g"), ["a"]);
    replicas = "gone";
    const device = { uid: "a", flag: 0, level: 0 } as const;
    const hash = new Uint8Array(32);
    const changes = [
      store.createChannel(group("new"), ["a"]),
      store.updateChannel(group("g"), { ban: true }),
      store.addSubscribers(group("g"), ["b"], PERMANENT),
      store.removeSubscribers(group("g"), ["a"], "permanent"),
      store.putDevice({ ...device, tokenHash: hash }),
      store.putPasswordOnce("admin", { passwordHash: "h" }),
      store.putAccessToken(hash, "admin", 1),
      store.removeAccessToken(hash),
    ];
    const codes = await Promise.all(changes.map(codeOf));
    t.same(codes, Array(changes.length).fill("unavailable"));
  });
});

t.test("while Redis is away every call is unavailable", async (t) => {
  const server = await startRedis(t);
  const { store, link } = await startControl(t, server.url);
  await store.createChannel(group("g"), ["a"]);
  await server.stop("SIGKILL");
  for (const [what, call] of Object.entries(CALLS))
    t.equal(await codeOf(call(store)), "unavailable", what);
  const isBack = new Promise<void>((resolve) => link.onChange((isUp) => isUp && resolve()));
  await server.restart();
  await isBack;
  t.equal(await store.channel(group("g")), undefined, "it saved nothing");
});

const CALLS: Readonly<Record<string, (store: ControlStore) => Promise<unknown>>> = {
  channel: (store) => store.channel(group("g")),
  createChannel: (store) => store.createChannel(group("n"), ["a"]),
  updateChannel: (store) => store.updateChannel(group("g"), {}),
  addSubscribers: (store) => store.addSubscribers(group("g"), ["b"], PERMANENT),
  removeSubscribers: (store) => store.removeSubscribers(group("g"), ["a"], "permanent"),
  groupFacts: async (store) => store.groupFacts("g", "a"),
  personFacts: async (store) => store.personFacts("a", "b"),
  groupsOf: (store) => store.groupsOf("a"),
  joinSeqs: (store) => store.joinSeqs("g", ["a"]),
  members: (store) => store.members(group("g")),
  membersAmong: (store) => store.membersAmong(group("g"), ["a"]),
};

async function index(t: Test, url: string): Promise<void> {
  t.test("creating it again enters it for its members", async (t) => {
    const { store, link } = await startControl(t, url);
    await store.createChannel(group("g"), ["a", "b"]);
    await link.call("del", link.keys.user("groups", "a")); // a fail-over lost it
    t.same(await store.groupsOf("a"), []);
    t.equal(await store.createChannel(group("g"), ["a", "c"]), false);
    t.same(await store.groupsOf("a"), ["g"]);
    t.same(await store.groupsOf("c"), []);
  });

  t.test("many groups", (t) => indexOfMany(t, url));

  t.test("a reader removes what is wrong and old", async (t) => {
    const { store, link, keys } = await startControl(t, url);
    const index = keys.user("groups", "a");
    for (const id of ["g1", "g2", "g3"]) await store.createChannel(group(id), ["a"]);
    await store.removeSubscribers(group("g2"), ["a"], "permanent");
    await store.updateChannel(group("g3"), { disband: true });
    t.same(await store.groupsOf("a"), ["g1"]);
    t.equal(await link.call("hlen", index), 3, "a script may be under way");
    const enteredAt = Number(await link.call("hget", index, "g2"));
    t.ok(Math.abs(enteredAt - Date.now() / 1000) < 5);
    for (const [id, ageS] of Object.entries({ g1: 999, g2: 310, g3: 290 }))
      await link.call("hset", index, id, enteredAt - ageS);
    t.same(await store.groupsOf("a"), ["g1"]);
    t.same(String(await link.call("hkeys", index)), "g1,g3");
  });

  t.test("a reader removes no group that was entered again", async (t) => {
    const { store, link, keys } = await startControl(t, url);
    const index = keys.user("groups", "a");
    await store.createChannel(group("g"), []);
    await link.call("hset", index, "g", 1);
    const run = link.run.bind(link);
    let removals = 0;
    link.run = async (script, named, args) => {
      if (named[0] === index && args.length > 1) {
        removals += 1;
        link.run = run;
        await store.addSubscribers(group("g"), ["a"], PERMANENT);
        await store.removeSubscribers(group("g"), ["a"], "permanent");
        await link.call("hset", index, "g", 2); // long ago, for a reader that stood still
      }
      return run(script, named, args);
    };
    t.same(await store.groupsOf("a"), []);
    t.equal(removals, 1);
    t.equal(String(await link.call("hget", index, "g")), "2");
  });

  t.test("it is entered before the user is a member", async (t) => {
    const { store, link, keys } = await startControl(t, url);
    await store.createChannel(group("g"), []);
    const join = keys.channel("joinSeqs", "2:g");
    await link.call("set", join, "no hash"); // the script fails, behind its first write
    const adding = store.addSubscribers(group("g"), ["a"], PERMANENT);
    t.equal(await codeOf(adding), "internal");
    t.same(await store.members(group("g")), ["a"]);
    t.same(await store.groupsOf("a"), ["g"]);
  });

  t.test("members that a late script makes are entered again", async (t) => {
    let nowMs = Date.now();
    const clock = () => nowMs;
    const { store, link, keys } = await startControl(t, url, { clock });
    const index = keys.user("groups", "a");
    const run = link.run.bind(link);
    const late = (call: () => Promise<unknown>) => {
      link.run = async (script, named, args) => {
        if (/^(channel_create|members_add)\./.test(script.name)) {
          nowMs += 400_000; // the node stands still, behind the entry
          await link.call("del", index); // and a reader removes it
        }
        return run(script, named, args);
      };
      return call().finally(() => {
        link.run = run;
      });
    };
    await late(() => store.createChannel(group("g"), ["a"]));
    t.same(await store.groupsOf("a"), ["g"]);
    await store.createChannel(group("h"), []);
    await late(() => store.addSubscribers(group("h"), ["a"], PERMANENT));
    t.same(await store.groupsOf("a"), ["h"]);
  });

  t.test("nothing is entered of a channel that takes no members", async (t) => {
    const { store, link, keys } = await startControl(t, url);
    await store.addSubscribers(group("none"), ["a"], PERMANENT);
    await store.createChannel(person("p"), ["a"]);
    await store.createChannel(group("g"), []);
    await store.createChannel(group("g"), ["a"]);
    t.equal(await link.call("exists", keys.user("groups", "a")), 0);
  });

  t.test("readers at once never make a member's group unknown", async (t) => {
    const { store, link, keys } = await startControl(t, url);
    await store.createChannel(group("g"), []);
    let isOver = false;
    const readers = Array.from({ length: 4 }, async () => {
      while (!isOver) await store.groupsOf("a");
    });
    const missed: number[] = [];
    for (let round = 0; round < 300; round++) {
      await store.addSubscribers(group("g"), ["a"], PERMANENT);
      if (!(await store.groupsOf("a")).includes("g")) missed.push(round);
      await store.removeSubscribers(group("g"), ["a"], "permanent");
      await link.call("hset", keys.user("groups", "a"), "g", round); // long ago: readers remove it
    }
    isOver = true;
    await Promise.all(readers);
    t.same(missed, []);
    t.same(await store.groupsOf("a"), []);
  });

  t.test("users on one server are entered many at a time", async (t) => {
    const { store, link, keys } = await startControl(t, url);
    const uids = Array.from({ length: 1200 }, (_, i) => `user-${i}`);
    const before = await calls(link, "evalsha");
    await store.createChannel(group("g"), uids);
    t.equal((await calls(link, "evalsha")) - before, 1 + 3 + 1);
    for (const uid of ["user-0", "user-500", "user-1199"])
      t.equal(await link.call("hexists", keys.user("groups", uid), "g"), 1);
  });
}

/** How often the server ran the command. */
async function calls(link: RedisLink, command: string): Promise<number> {
  const stats = String(await link.call("info", "commandstats"));
  const found = new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats);
  return Number(found?.[1] ?? 0);
}

async function indexOfMany(t: Test, url: string): Promise<void> {
  const { store } = await startControl(t, url);
  const ids = Array.from({ length: 300 }, (_, i) => `group-${i}`);
  await Promise.all(ids.map((id) => store.createChannel(group(id), ["a"])));
  const gone = ids.filter((_, i) => i % 3 === 0);
  await Promise.all(gone.map((id) => store.removeSubscribers(group(id), ["a"], "permanent")));
  const left = ids.filter((_, i) => i % 3 !== 0).sort();
  t.same([...(await store.groupsOf("a"))].sort(), left);
  t.same([...(await store.groupsOf("a"))].sort(), left);
}

async function replacedLists(t: Test, server: RedisServer): Promise<void> {
  const reset = { membership: "permanent", reset: true } as const;
  const listOf = (prefix: string) =>
    Array.from({ length: 2400 }, (_, i) => `${prefix}-${i}`).sort();

  t.test("the longer one was, the more steps look through it", async (t) => {
    const { store, link, keys } = await startControl(t, server.url);
    const uids = listOf("a");
    await store.createChannel(group("g"), uids);
    const client = server.client();
    await client.config("RESETSTAT");
    await store.addSubscribers(group("g"), uids.slice(0, 3), reset);
    const stats = await client.info("commandstats");
    t.match(stats, /cmdstat_spop:calls=3,/);
    const joins = await link.call("hkeys", keys.channel("joinSeqs", "2:g"));
    t.same(String(joins).split(",").sort(), uids.slice(0, 3));
    const kept = await client.keys(`${keys.prefix}:*replaced*`);
    t.same(kept, [], "nothing is set aside any more");
  });

  t.test("who reads has the whole of one or of the other", async (t) => {
    const { store } = await startControl(t, server.url);
    const lists = [listOf("a"), listOf("b")];
    await store.createChannel(group("g"), lists[0] ?? []);
    let isOver = false;
    const seen = new Set<string>();
    const reader = (async () => {
      while (!isOver) {
        const read = [...(await store.members(group("g")))].sort();
        seen.add(read.join());
      }
    })();
    for (let round = 1; round <= 6; round++)
      await store.addSubscribers(group("g"), lists[round % 2] ?? [], reset);
    isOver = true;
    await reader;
    const expected = new Set(lists.map((list) => list.join()));
    t.ok(seen.size > 0);
    t.same([...seen].filter((read) => !expected.has(read)).length, 0);
  });

  t.test("what a call that was cut off left is removed by the next", async (t) => {
    const { store, link, keys } = await startControl(t, server.url);
    const key = (part: string) => keys.channel(part, "2:g");
    await store.createChannel(group("g"), ["a", "b", "c", "d"]);
    await store.addSubscribers(group("g"), ["c"], TEMPORARY);
    await link.call("hset", key("head"), "seq", 7);
    await link.call("rename", key("permanent"), key("replaced"));
    await link.call("sadd", key("permanent"), "b"); // its node died behind the first script
    await store.addSubscribers(group("g"), ["a"], reset);
    t.same(
      await store.joinSeqs("g", ["a", "b", "c", "d"]),
      [7, undefined, 0, undefined],
      "who was left out in between begins anew",
    );
    const joins = await link.call("hkeys", key("joinSeqs"));
    t.same(String(joins).split(",").sort(), ["a", "c"]);
    const kept = await server.client().keys(`${keys.prefix}:*replaced*`);
    t.same(kept, [], "nothing is set aside any more");
  });

  t.test("and by the next addition, or after a day at most", async (t) => {
    const { store, link, keys } = await startControl(t, server.url);
    const replaced = keys.channel("replaced", "2:g");
    await store.createChannel(group("g"), ["a", "b"]);
    const run = link.run.bind(link);
    link.run = async (script, named, args) => {
      if (script.name === "members_forget.lua") throw new BrokerError("unavailable");
      return run(script, named, args);
    };
    for (const uid of ["c", "d"]) {
      const replacing = store.addSubscribers(group("g"), [uid], reset);
      t.equal(await codeOf(replacing), "unavailable");
      const leftMs = Number(await link.call("pttl", replaced));
      t.ok(leftMs > 86_000_000 && leftMs <= 86_400_000, `${leftMs} ms`);
    }
    link.run = run;
    await store.addSubscribers(group("g"), ["e"], PERMANENT);
    t.equal(await link.call("exists", replaced), 0);
    const joins = await link.call("hkeys", keys.channel("joinSeqs", "2:g"));
    t.same(String(joins).split(",").sort(), ["d", "e"]);
  });

  t.test("contacts leave nothing to look through", async (t) => {
    const { store, keys } = await startControl(t, server.url);
    await store.createChannel(person("p"), ["a", "b"]);
    await store.addSubscribers(person("p"), ["b", "c"], reset);
    t.same([...(await store.members(person("p")))].sort(), ["b", "c"]);
    const kept = await server.client().keys(`${keys.prefix}:*1:p`);
    t.same(kept.length, 2, "its record and its contacts");
  });

  t.test("who comes back in between begins anew", async (t) => {
    const { store, link, keys } = await startControl(t, server.url);
    await store.createChannel(group("g"), []);
    const fields = [
      [keys.channel("positions", "2:g"), "a"],
      [keys.channel("head", "2:g"), "@a"],
    ] as const;
    for (const field of fields) await link.call("hset", ...field, 1);
    await store.addSubscribers(group("g"), ["a"], PERMANENT);
    for (const field of fields) t.equal(await link.call("hexists", ...field), 0);
  });
}

async function keptOfMembers(t: Test, url: string): Promise<void> {
  const { store, link, keys } = await startControl(t, url);
  const key = (part: string) => keys.channel(part, "2:g");
  const kept = async (part: string) =>
    String(await link.call("hkeys", key(part)))
      .split(",")
      .filter((field) => part !== "head" || field.startsWith("@"))
      .map((field) => field.replace("@", ""))
      .sort()
      .join();
  await link.call("hset", key("head"), "seq", 7);
  await store.createChannel(group("g"), ["a", "b"]);
  await link.call("hset", key("head"), "seq", 9);
  await store.addSubscribers(group("g"), ["b", "c"], TEMPORARY);
  const joins = await link.call("hmget", key("joinSeqs"), "a", "b", "c");
  t.equal(String(joins), "7,7,9", "the head when each became a member");

  await link.call("hset", key("positions"), "a", 1, "b", 1, "c", 1);
  await link.call("hset", key("head"), "@a", 1, "@b", 1, "@c", 1);
  await store.removeSubscribers(group("g"), ["b", "a"], "permanent");
  for (const part of ["joinSeqs", "positions", "head"]) t.equal(await kept(part), "b,c");
  await store.addSubscribers(group("g"), ["c", "d"], {
    ...{ membership: "temporary", reset: true },
  });
  t.equal(await kept("joinSeqs"), "c,d");
  for (const part of ["positions", "head"]) t.equal(await kept(part), "c");
  await store.createChannel(person("p"), ["a"]);
  t.equal(await link.call("exists", keys.channel("joinSeqs", "1:p")), 0);
}

async function oddIds(t: Test, url: string): Promise<void> {
  const { store } = await startControl(t, url);
  const odd = ["}", "{x}", '"\\', "名字", "\u{1F600}", "a b", "12", "1e3", "*?"];
  for (const id of odd) {
    t.equal(await store.createChannel(group(id), odd), true, id);
    t.equal((await store.groupFacts(id, id)).isSubscriber, true, id);
  }
  for (const uid of odd) t.same([...(await store.groupsOf(uid))].sort(), [...odd].sort());
  t.same(await store.membersAmong(group("}"), odd), odd);
  t.same([...(await store.members(group("*?")))].sort(), [...odd].sort());
}
