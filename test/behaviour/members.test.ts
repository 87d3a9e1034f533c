// Tests how a member of a group reads the list of members on a socket.

import { t } from "../support/suite.ts";
import { codeOf, person, range, startWorld, wire } from "./world.ts";

const world = await startWorld(t);

// Covers [feature: Members of a group]
t.test(
  "a member reads the permanent and temporary members of a group, sorted and in pages",
  async (t) => {
    const alice = world.name("alice");
    const others = range(1, 6).map((n) => `${alice}-${n}`);
    const channel = await world.newGroup([alice, ...others.slice(0, 4)]);
    const subscribers = others.slice(3); // the first of them has both kinds of membership
    await world.ok("/channel/subscriber_add", {
      ...wire(channel),
      ...{ subscribers, temp_subscriber: 1 },
    });
    const client = await world.join(t, alice);
    const { uids, cursor } = await client.members(channel, { limit: 1000 });
    t.same([uids, cursor], [[alice, ...others], undefined]);
    const pages: (readonly string[])[] = [];
    let next: string | undefined;
    do {
      const page = await client.members(channel, { limit: 3, cursor: next });
      pages.push(page.uids);
      next = page.cursor;
    } while (next !== undefined);
    t.same(pages, [[alice, ...others.slice(0, 2)], others.slice(2, 5), others.slice(5)]);
    const exact = await client.members(channel, { limit: 7 });
    t.equal(exact.cursor, undefined, "a full last page has no cursor");
    const temporary = others.at(-1) ?? "";
    const guest = await world.join(t, temporary);
    t.same((await guest.members(channel)).uids, [alice, ...others]);
    const removed = { ...wire(channel), subscribers: others.slice(0, 2) };
    await world.ok("/channel/subscriber_remove", removed);
    t.same((await client.members(channel)).uids, [alice, ...others.slice(2)]);
  },
);

// Covers [feature: Members of a group]
t.test(
  "the members of a group can be read only by its current members, and a request for the members of a personal channel is refused",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    const [client, outsider] = [await world.join(t, bob), await world.join(t, world.name("carol"))];
    t.same((await client.members(channel)).uids, [alice, bob]);
    t.equal(await codeOf(outsider.members(channel)), "not_in_channel");
    t.equal(await codeOf(client.members({ ...channel, id: "nowhere" })), "not_in_channel");
    t.equal(await codeOf(client.members(person(alice))), "bad_request");
    t.equal(await codeOf(client.members(channel, { limit: 0 })), "bad_request");
    t.equal(await codeOf(client.members(channel, { limit: 1001 })), "bad_request");
    await world.ok("/channel/subscriber_remove", { ...wire(channel), subscribers: [bob] });
    t.equal(await codeOf(client.members(channel)), "not_in_channel");
    await client.ping();
  },
);

// Covers [feature: Members of a group]
t.test(
  "reading the members of a large group is charged for each member, and is refused with rate_limited when the user's budget is used up",
  async (t) => {
    const alice = world.name("alice");
    const others = range(1, 9000).map((n) => `${alice}-${n}`);
    const channel = await world.newGroup([alice, ...others], { large: 1 });
    const client = await world.join(t, alice);
    const codes = await Promise.all(
      range(1, 30).map(() => codeOf(client.members(channel, { limit: 1 }))),
    );
    t.equal(codes[0], "ok");
    t.ok(codes.includes("rate_limited"), `the requests were answered ${codes.join()}`);
  },
);
