// Watching the online status of users on the socket: the status at once, and then each change.

import type { NativeClient } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { codeOf, eventually, range, startWorld } from "./world.ts";

const world = await startWorld(t, { JINDOU_PRESENCE_OFFLINE_DELAY_MS: "0" });

/** Returns `<uid> <on|off> <flag>` of every change pushed so far, in order. */
function changes(client: NativeClient): readonly string[] {
  return client
    .pushesOf("presence")
    .flatMap(({ presence }) => presence)
    .map(({ uid, online, flag }) => `${uid} ${online ? "on" : "off"} ${flag}`);
}

/** Waits until `count` changes were pushed. Returns all changes. */
async function untilChanges(client: NativeClient, count: number) {
  await client.waitFor(() => changes(client).length >= count, `${count} changes`);
  await client.ping();
  return changes(client);
}

// Covers [feature: presence watch]
t.test(
  "WATCH returns the status of users in request order, and each later change is pushed once",
  async (t) => {
    const [alice, bob, carol] = ["alice", "bob", "carol"].map((name) => world.name(name)) as [
      string,
      string,
      string,
    ];
    const watcher = await world.join(t, alice);
    const first = await world.join(t, bob, { flag: 1 });
    const { presence } = await watcher.watch([carol, bob, carol, alice]);
    t.same(presence, [
      { uid: carol, online: false, flag: 0 },
      { uid: bob, online: true, flag: 1 },
      { uid: carol, online: false, flag: 0 },
      { uid: alice, online: true, flag: 0 },
    ]);
    await world.join(t, carol, { flag: 2 });
    t.same(await untilChanges(watcher, 1), [`${carol} on 2`]);
    await first.close();
    t.same(await untilChanges(watcher, 2), [`${carol} on 2`, `${bob} off 0`]);
  },
);

// Covers [feature: presence watch]
t.test(
  "the login of a second device is not pushed to watchers if it does not change the user's status",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const watcher = await world.join(t, alice);
    await world.join(t, bob, { flag: 0 });
    await watcher.watch([bob]);
    const second = await world.join(t, bob, { flag: 1 });
    await second.close();
    await eventually(async () => (await world.status(bob)).device_flag === 0);
    const main = await world.join(t, bob, { flag: 2, level: 1 });
    t.same(
      await untilChanges(watcher, 1),
      [`${bob} on 2`],
      "the flag of the main device is pushed",
    );
    await main.close();
    t.same(await untilChanges(watcher, 2), [`${bob} on 2`, `${bob} on 0`]);
  },
);

// Covers [feature: presence watch]
t.test(
  "a WATCH of other users replaces the previous WATCH, and an empty WATCH ends all notifications",
  async (t) => {
    const [alice, bob, carol] = ["alice", "bob", "carol"].map((name) => world.name(name)) as [
      string,
      string,
      string,
    ];
    const watcher = await world.join(t, alice);
    await watcher.watch([bob]);
    await watcher.watch([carol]);
    await world.join(t, bob);
    await world.join(t, carol);
    t.same(await untilChanges(watcher, 1), [`${carol} on 0`]);
    t.same((await watcher.watch([])).presence, []);
    (await world.join(t, bob, { flag: 1 })).kill();
    await world.join(t, world.name("late"));
    t.same(await untilChanges(watcher, 1), [`${carol} on 0`]);
  },
);

// Covers [feature: presence watch]
t.test("a user's status changes are pushed to every watcher and to no other session", async (t) => {
  const bob = world.name("bob");
  const watchers = await Promise.all(
    ["w", "w", "w"].map((name) => world.join(t, world.name(name))),
  );
  const [first, second, unrelated] = watchers as [NativeClient, NativeClient, NativeClient];
  await Promise.all([first.watch([bob]), second.watch([bob])]);
  const client = await world.join(t, bob);
  for (const watcher of [first, second]) t.same(await untilChanges(watcher, 1), [`${bob} on 0`]);
  await first.close();
  await client.close();
  t.same(await untilChanges(second, 2), [`${bob} on 0`, `${bob} off 0`]);
  t.same(await untilChanges(unrelated, 0), []);
});

// Covers [feature: presence watch]
t.test("a session can watch up to 200 users, and a WATCH of more users is refused", async (t) => {
  const watcher = await world.join(t, world.name("alice"));
  const uids = range(1, 200).map((n) => `${watcher.uid}-friend-${n}`);
  const { presence } = await watcher.watch(uids);
  t.same(
    presence.map(({ uid }) => uid),
    uids,
  );
  const last = uids.at(-1) ?? "";
  await world.join(t, last);
  t.same(await untilChanges(watcher, 1), [`${last} on 0`]);
  t.equal(await codeOf(watcher.watch([...uids, "one-more"])), "too_large");
  t.equal(await codeOf(watcher.watch(["a@b"])), "bad_id");
});

// Covers [feature: presence watch]
t.test(
  "the last status that is pushed after many quick logins and logouts is the user's current status",
  async (t) => {
    const bob = world.name("bob");
    const watcher = await world.join(t, world.name("alice"));
    await watcher.watch([bob]);
    await world.register(bob);
    for (let round = 0; round < 10; round++) {
      const clients = await Promise.all([world.connect(t, bob), world.connect(t, bob)]);
      await Promise.all(clients.map((client) => client.close()));
    }
    const last = await world.connect(t, bob);
    await eventually(() => changes(watcher).at(-1) === `${bob} on 0`);
    await last.close();
    await eventually(() => changes(watcher).at(-1) === `${bob} off 0`);
    const repeats = changes(watcher).filter((change, at, all) => change === all[at - 1]);
    t.same(repeats, [], "each change is pushed once");
  },
);
