// Channels and members on Redis, in addition to the contract: group indexes with concurrent readers
// and writers, pages of large groups, and the data that is kept about members.

import t, { type Test } from "tap";
import { BrokerError } from "../../../src/broker/errors.ts";
import type { RedisLink } from "../../../src/redis/link.ts";
import { codeOf, group, PERMANENT, person, TEMPORARY } from "../../contract/store-fixture.ts";
import { type RedisServer, startRedis } from "../../support/redis.ts";
import { type ControlStore, startControl } from "./control.ts";

t.test("channels and members work on a single Redis server", async (t) => {
  const server = await startRedis(t);
  t.test("a user's group index contains every group of the user", (t) => groupIndex(t, server.url));
  t.test("the data of a member is removed when the member leaves", (t) =>
    memberFields(t, server.url),
  );
  t.test("the ids of channels and members may contain any characters", (t) =>
    oddIds(t, server.url),
  );

  t.test("all members of a large group are listed while further users join", async (t) => {
    const { store } = await startControl(t, server.url);
    const uids = Array.from({ length: 12_000 }, (_, i) => `user-${i}`);
    await store.createChannel(group("g"), uids);
    await store.addSubscribers(group("g"), ["user-1", "extra"], TEMPORARY);
    const [listed] = await Promise.all([
      store.members(group("g")),
      store.addSubscribers(group("g"), ["late-1", "late-2"], PERMANENT),
    ]);
    const members = new Set(listed);
    t.equal(members.size, listed.length, "each member is listed once");
    t.same(
      [...uids, "extra"].filter((uid) => !members.has(uid)),
      [],
      "every member that stays is listed",
    );
    t.same(
      listed.filter((uid) => !/^(user-\d+|extra|late-\d)$/.test(uid)),
      [],
    );
  });

  t.test("replacing a member list leaves no data of removed members", (t) =>
    replacedLists(t, server),
  );

  t.test("a channel record of a newer format is rejected", async (t) => {
    const { store, keys } = await startControl(t, server.url);
    await store.createChannel(group("g"), ["a"]);
    const client = server.client();
    await client.hset(keys.channel("head", "2:g"), "info", 2 * 256);
    t.equal(await codeOf(store.channel(group("g"))), "internal");
    t.equal(await codeOf(store.addSubscribers(group("g"), ["b"], PERMANENT)), "internal");
  });

  t.test("a change is confirmed only after the required replicas have received it", async (t) => {
    const missing = new BrokerError("unavailable");
    let replicas: "present" | "absent" = "present";
    const { store } = await startControl(t, server.url, {
      waitForReplicas: async () => {
        if (replicas === "absent") throw missing;
      },
    });
    await store.createChannel(group("g"), ["a"]);
    replicas = "absent";
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

t.test(
  "every call on channels and members is rejected as unavailable while Redis is down",
  async (t) => {
    const server = await startRedis(t);
    const { store, link } = await startControl(t, server.url);
    await store.createChannel(group("g"), ["a"]);
    await server.stop("SIGKILL");
    for (const [name, call] of Object.entries(CALLS))
      t.equal(await codeOf(call(store)), "unavailable", name);
    const isBack = new Promise<void>((resolve) => link.onChange((isUp) => isUp && resolve()));
    await server.restart();
    await isBack;
    t.equal(await store.channel(group("g")), undefined, "the restarted server saved no data");
  },
);

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

async function groupIndex(t: Test, url: string): Promise<void> {
  t.test("creating a group again restores lost index entries of its members", async (t) => {
    const { store, link } = await startControl(t, url);
    await store.createChannel(group("g"), ["a", "b"]);
    await link.call("del", link.keys.user("groups", "a")); // as after a fail-over
    t.same(await store.groupsOf("a"), []);
    t.equal(await store.createChannel(group("g"), ["a", "c"]), false);
    t.same(await store.groupsOf("a"), ["g"]);
    t.same(await store.groupsOf("c"), []);
  });

  t.test("the groups of a user are listed completely after 300 joins and 100 leaves", (t) =>
    indexOfMany(t, url),
  );

  t.test(
    "a read of the group index removes wrong entries that are older than five minutes",
    async (t) => {
      const { store, link, keys } = await startControl(t, url);
      const index = keys.user("groups", "a");
      for (const id of ["g1", "g2", "g3"]) await store.createChannel(group(id), ["a"]);
      await store.removeSubscribers(group("g2"), ["a"], "permanent");
      await store.updateChannel(group("g3"), { disband: true });
      t.same(await store.groupsOf("a"), ["g1"]);
      t.equal(
        await link.call("hlen", index),
        3,
        "young entries stay, because a script may still add the member",
      );
      const enteredAt = Number(await link.call("hget", index, "g2"));
      t.ok(Math.abs(enteredAt - Date.now() / 1000) < 5);
      for (const [id, ageS] of Object.entries({ g1: 999, g2: 310, g3: 290 }))
        await link.call("hset", index, id, enteredAt - ageS);
      t.same(await store.groupsOf("a"), ["g1"]);
      t.same(String(await link.call("hkeys", index)), "g1,g3");
    },
  );

  t.test(
    "a read of the group index does not remove an old entry that was added again during the read",
    async (t) => {
      const { store, link, keys } = await startControl(t, url);
      const index = keys.user("groups", "a");
      await store.createChannel(group("g"), []);
      await link.call("hset", index, "g", 1);
      const run = link.run.bind(link);
      let removals = 0;
      link.run = async (script, keyNames, args) => {
        if (keyNames[0] === index && args.length > 1) {
          removals += 1;
          link.run = run;
          await store.addSubscribers(group("g"), ["a"], PERMANENT);
          await store.removeSubscribers(group("g"), ["a"], "permanent");
          // The entry looks old, as if the reader had been frozen in the meantime.
          await link.call("hset", index, "g", 2);
        }
        return run(script, keyNames, args);
      };
      t.same(await store.groupsOf("a"), []);
      t.equal(removals, 1);
      t.equal(String(await link.call("hget", index, "g")), "2");
    },
  );

  t.test("a user's group index entry is added before the user becomes a member", async (t) => {
    const { store, link, keys } = await startControl(t, url);
    await store.createChannel(group("g"), []);
    const join = keys.channel("joinSeqs", "2:g");
    await link.call("set", join, "no hash"); // the script fails after its first write
    const adding = store.addSubscribers(group("g"), ["a"], PERMANENT);
    t.equal(await codeOf(adding), "internal");
    t.same(await store.members(group("g")), ["a"]);
    t.same(await store.groupsOf("a"), ["g"]);
  });

  t.test(
    "a group index entry is restored if it is removed before a delayed script adds the member",
    async (t) => {
      let nowMs = Date.now();
      const clock = () => nowMs;
      const { store, link, keys } = await startControl(t, url, { clock });
      const index = keys.user("groups", "a");
      const run = link.run.bind(link);
      const runLate = (call: () => Promise<unknown>) => {
        link.run = async (script, keyNames, args) => {
          if (/^(channel_create|members_add)\./.test(script.name)) {
            nowMs += 400_000; // the node is frozen after adding the entry
            await link.call("del", index); // and a reader removes the entry
          }
          return run(script, keyNames, args);
        };
        return call().finally(() => {
          link.run = run;
        });
      };
      await runLate(() => store.createChannel(group("g"), ["a"]));
      t.same(await store.groupsOf("a"), ["g"]);
      await store.createChannel(group("h"), []);
      await runLate(() => store.addSubscribers(group("h"), ["a"], PERMANENT));
      t.same(await store.groupsOf("a"), ["h"]);
    },
  );

  t.test("a call that adds no group members adds no index entry", async (t) => {
    const { store, link, keys } = await startControl(t, url);
    await store.addSubscribers(group("none"), ["a"], PERMANENT);
    await store.createChannel(person("p"), ["a"]);
    await store.createChannel(group("g"), []);
    await store.createChannel(group("g"), ["a"]);
    t.equal(await link.call("exists", keys.user("groups", "a")), 0);
  });

  t.test("concurrent reads never remove a member's group from the index", async (t) => {
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
      // The time is old, so that readers remove the entry.
      await link.call("hset", keys.user("groups", "a"), "g", round);
    }
    isOver = true;
    await Promise.all(readers);
    t.same(missed, []);
    t.same(await store.groupsOf("a"), []);
  });

  t.test("index entries of many users on one server are added in batches", async (t) => {
    const { store, link, keys } = await startControl(t, url);
    const uids = Array.from({ length: 1200 }, (_, i) => `user-${i}`);
    const before = await callsOf(link, "evalsha");
    await store.createChannel(group("g"), uids);
    t.equal((await callsOf(link, "evalsha")) - before, 1 + 3 + 1);
    for (const uid of ["user-0", "user-500", "user-1199"])
      t.equal(await link.call("hexists", keys.user("groups", uid), "g"), 1);
  });
}

/** Returns the number of times that the server ran a command. */
async function callsOf(link: RedisLink, command: string): Promise<number> {
  const stats = String(await link.call("info", "commandstats"));
  const match = new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats);
  return Number(match?.[1] ?? 0);
}

async function indexOfMany(t: Test, url: string): Promise<void> {
  const { store } = await startControl(t, url);
  const ids = Array.from({ length: 300 }, (_, i) => `group-${i}`);
  await Promise.all(ids.map((id) => store.createChannel(group(id), ["a"])));
  const leftIds = ids.filter((_, i) => i % 3 === 0);
  await Promise.all(leftIds.map((id) => store.removeSubscribers(group(id), ["a"], "permanent")));
  const memberIds = ids.filter((_, i) => i % 3 !== 0).sort();
  t.same([...(await store.groupsOf("a"))].sort(), memberIds);
  t.same([...(await store.groupsOf("a"))].sort(), memberIds);
}

async function replacedLists(t: Test, server: RedisServer): Promise<void> {
  const reset = { membership: "permanent", reset: true } as const;
  const uidsOf = (prefix: string) =>
    Array.from({ length: 2400 }, (_, i) => `${prefix}-${i}`).sort();

  t.test(
    "the data of members who are not in a new member list is removed in several steps",
    async (t) => {
      const { store, link, keys } = await startControl(t, server.url);
      const uids = uidsOf("a");
      await store.createChannel(group("g"), uids);
      const client = server.client();
      await client.config("RESETSTAT");
      await store.addSubscribers(group("g"), uids.slice(0, 3), reset);
      const stats = await client.info("commandstats");
      t.match(stats, /cmdstat_spop:calls=3,/);
      const joins = await link.call("hkeys", keys.channel("joinSeqs", "2:g"));
      t.same(String(joins).split(",").sort(), uids.slice(0, 3));
      const setAside = await client.keys(`${keys.prefix}:*replaced*`);
      t.same(setAside, [], "no uid is set aside any more");
    },
  );

  t.test(
    "a read of the members during a replacement returns the complete old or the complete new list",
    async (t) => {
      const { store } = await startControl(t, server.url);
      const lists = [uidsOf("a"), uidsOf("b")];
      await store.createChannel(group("g"), lists[0] ?? []);
      let isOver = false;
      const readLists = new Set<string>();
      const reader = (async () => {
        while (!isOver) {
          const members = [...(await store.members(group("g")))].sort();
          readLists.add(members.join());
        }
      })();
      for (let round = 1; round <= 6; round++)
        await store.addSubscribers(group("g"), lists[round % 2] ?? [], reset);
      isOver = true;
      await reader;
      const expected = new Set(lists.map((list) => list.join()));
      t.ok(readLists.size > 0);
      t.same([...readLists].filter((members) => !expected.has(members)).length, 0);
    },
  );

  t.test(
    "the next replacement of a member list completes an interrupted cleanup of removed members",
    async (t) => {
      const { store, link, keys } = await startControl(t, server.url);
      const key = (part: string) => keys.channel(part, "2:g");
      await store.createChannel(group("g"), ["a", "b", "c", "d"]);
      await store.addSubscribers(group("g"), ["c"], TEMPORARY);
      await link.call("hset", key("head"), "seq", 7);
      await link.call("rename", key("permanent"), key("replaced"));
      // As if the replacing node had died after its first script.
      await link.call("sadd", key("permanent"), "b");
      await store.addSubscribers(group("g"), ["a"], reset);
      t.same(
        await store.joinSeqs("g", ["a", "b", "c", "d"]),
        [7, undefined, 0, undefined],
        "a member that was removed in the meantime gets a new join seq",
      );
      const joins = await link.call("hkeys", key("joinSeqs"));
      t.same(String(joins).split(",").sort(), ["a", "c"]);
      const setAside = await server.client().keys(`${keys.prefix}:*replaced*`);
      t.same(setAside, [], "no uid is set aside any more");
    },
  );

  t.test(
    "the next addition of members completes an interrupted cleanup, and the replaced member list expires after a day",
    async (t) => {
      const { store, link, keys } = await startControl(t, server.url);
      const replaced = keys.channel("replaced", "2:g");
      await store.createChannel(group("g"), ["a", "b"]);
      const run = link.run.bind(link);
      link.run = async (script, keyNames, args) => {
        if (script.name === "members_forget.lua") throw new BrokerError("unavailable");
        return run(script, keyNames, args);
      };
      for (const uid of ["c", "d"]) {
        const replacing = store.addSubscribers(group("g"), [uid], reset);
        t.equal(await codeOf(replacing), "unavailable");
        const remainingMs = Number(await link.call("pttl", replaced));
        t.ok(
          remainingMs > 86_000_000 && remainingMs <= 86_400_000,
          `the set-aside list expires after ${remainingMs} ms`,
        );
      }
      link.run = run;
      await store.addSubscribers(group("g"), ["e"], PERMANENT);
      t.equal(await link.call("exists", replaced), 0);
      const joins = await link.call("hkeys", keys.channel("joinSeqs", "2:g"));
      t.same(String(joins).split(",").sort(), ["d", "e"]);
    },
  );

  t.test("a contact list is deleted at once when a new list replaces it", async (t) => {
    const { store, keys } = await startControl(t, server.url);
    await store.createChannel(person("p"), ["a", "b"]);
    await store.addSubscribers(person("p"), ["b", "c"], reset);
    t.same([...(await store.members(person("p")))].sort(), ["b", "c"]);
    const kept = await server.client().keys(`${keys.prefix}:*1:p`);
    t.same(kept.length, 2, "the channel has only the keys of its record and its contacts");
  });

  t.test(
    "a user who leaves and joins again before the cleanup does not get the old read position",
    async (t) => {
      const { store, link, keys } = await startControl(t, server.url);
      await store.createChannel(group("g"), []);
      const fields = [
        [keys.channel("positions", "2:g"), "a"],
        [keys.channel("head", "2:g"), "@a"],
      ] as const;
      for (const field of fields) await link.call("hset", ...field, 1);
      await store.addSubscribers(group("g"), ["a"], PERMANENT);
      for (const field of fields) t.equal(await link.call("hexists", ...field), 0);
    },
  );
}

async function memberFields(t: Test, url: string): Promise<void> {
  const { store, link, keys } = await startControl(t, url);
  const key = (part: string) => keys.channel(part, "2:g");
  const uidsIn = async (part: string) =>
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
  t.equal(String(joins), "7,7,9", "joinSeqs contains the newest seq at each join");

  await link.call("hset", key("positions"), "a", 1, "b", 1, "c", 1);
  await link.call("hset", key("head"), "@a", 1, "@b", 1, "@c", 1);
  await store.removeSubscribers(group("g"), ["b", "a"], "permanent");
  for (const part of ["joinSeqs", "positions", "head"]) t.equal(await uidsIn(part), "b,c");
  await store.addSubscribers(group("g"), ["c", "d"], {
    ...{ membership: "temporary", reset: true },
  });
  t.equal(await uidsIn("joinSeqs"), "c,d");
  for (const part of ["positions", "head"]) t.equal(await uidsIn(part), "c");
  await store.createChannel(person("p"), ["a"]);
  t.equal(await link.call("exists", keys.channel("joinSeqs", "1:p")), 0);
}

async function oddIds(t: Test, url: string): Promise<void> {
  const { store } = await startControl(t, url);
  const ids = ["}", "{x}", '"\\', "名字", "\u{1F600}", "a b", "12", "1e3", "*?"];
  for (const id of ids) {
    t.equal(await store.createChannel(group(id), ids), true, id);
    t.equal((await store.groupFacts(id, id)).isSubscriber, true, id);
  }
  for (const uid of ids) t.same([...(await store.groupsOf(uid))].sort(), [...ids].sort());
  t.same(await store.membersAmong(group("}"), ids), ids);
  t.same([...(await store.members(group("*?")))].sort(), [...ids].sort());
}
