// Pages of a user's conversations, over HTTP and on the socket: the list is complete, whatever
// happens between two pages.

import type { Test } from "tap";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import { volume } from "../support/volume.ts";
import { codeOf, person, range, startWorld, wire } from "./world.ts";

const world = await startWorld(t);
const RED = { header: { red_dot: 1 } };

interface Listed {
  readonly id: string;
  /** Text that changes with every new message and with every change by the user. */
  readonly state: string;
}

interface Page {
  readonly list: readonly Listed[];
  readonly cursor: string | undefined;
}

type ReadPage = (cursor: string | undefined, limit?: number) => Promise<Page>;

/** Reads pages over HTTP. `fields` are added to the body of each call. */
function overHttp(uid: string, fields: object = {}): ReadPage {
  return async (cursor, limit) => {
    const { status, body, headers } = await world.call("/conversation/sync", {
      ...{ uid, ...fields, cursor, limit },
    });
    if (status !== 200) throw new Error(body.code);
    const list = body.map((item: Record<string, unknown>) => ({
      id: item.channel_id,
      state: [item.last_msg_seq, item.readed_to_msg_seq, item.offset_msg_seq, item.version].join(),
    }));
    return { list, cursor: headers.get("jindou-cursor") ?? undefined };
  };
}

async function onSocket(t: Test, uid: string): Promise<ReadPage> {
  const client = await world.join(t, uid);
  return async (cursor, limit = 100) => {
    const page = await client.conversations({ cursor, limit });
    const list = page.conversations.map(({ channel, last, ...item }) => ({
      id: channel.id,
      state: [last?.messageSeq, item.readSeq, item.deletedSeq, item.changedAtMs].join(),
    }));
    return { list, cursor: page.cursor };
  };
}

/** Reads all pages. `between` runs after each page except the last. */
async function readAll(
  read: ReadPage,
  limit?: number,
  between: () => Promise<void> = async () => undefined,
): Promise<readonly Listed[]> {
  const all: Listed[] = [];
  let cursor: string | undefined;
  for (;;) {
    const page = await read(cursor, limit);
    all.push(...page.list);
    cursor = page.cursor;
    if (cursor === undefined) return all;
    await between();
  }
}

const idsOf = (list: readonly Listed[]) => list.map(({ id }) => id);

// Covers [decisions: Paging of conversations]
t.test("POST /conversation/sync without a page or limit returns every conversation", async (t) => {
  const alice = world.name("alice");
  const peers = range(1, 130).map((n) => `${alice}-${n}`);
  await Promise.all(peers.map((uid) => world.send(uid, person(alice), "x", RED)));
  const { body, headers } = await world.call("/conversation/sync", { uid: alice, version: 0 });
  const listed = body.map(({ channel_id }: { channel_id: string }) => channel_id);
  t.same(new Set(listed), new Set(peers));
  t.equal(listed.length, peers.length);
  t.equal(headers.get("jindou-cursor"), null);
  const versions: number[] = body.map(({ version }: { version: number }) => version);
  t.same(
    versions,
    versions.toSorted((a, b) => b - a),
    "the conversation with the newest message comes first",
  );
  for (const zero of [
    { page: 0, page_size: 0 },
    { limit: 0, cursor: "" },
  ])
    t.equal((await world.ok("/conversation/sync", { uid: alice, ...zero })).length, 130);
  for (const size of [{ limit: 50 }, { page_size: 50 }]) {
    const pages = await readAll(overHttp(alice, size));
    t.same(idsOf(pages), listed, "pages contain the same conversations in the same order");
  }
});

// Covers [decisions: Paging of conversations]
t.test(
  "after a deletion or a new message between two pages, other conversations are neither skipped nor repeated",
  async (t) => {
    for (const door of ["http", "socket"]) {
      const alice = world.name("alice");
      const read = door === "http" ? overHttp(alice) : await onSocket(t, alice);
      const peers = range(1, 6).map((n) => `${alice}-${n}`);
      for (const uid of peers) await world.send(uid, person(alice), "x", RED);
      const at = (n: number) => peers[n - 1] ?? "";
      const first = await read(undefined, 2);
      t.same(idsOf(first.list), [at(6), at(5)]);
      await world.ok("/conversations/delete", { uid: alice, ...wire(person(at(6))) });
      const second = await read(first.cursor, 2);
      t.same(
        idsOf(second.list),
        [at(4), at(3)],
        `${door}: a deletion does not hide other conversations`,
      );
      await world.send(at(1), person(alice), "y", RED);
      await world.send(at(5), person(alice), "y", RED);
      const third = await read(second.cursor, 5);
      t.same(third.cursor, undefined);
      const ids = idsOf(third.list);
      t.same(
        new Set(ids),
        new Set([at(2), at(1), at(5)]),
        `${door}: the last page lists the changed conversations again`,
      );
    }
  },
);

// Covers [decisions: Paging of conversations]
t.test(
  "pages that are read during random changes contain each unchanged conversation exactly once, and the newest state of each changed conversation that was not deleted",
  async (t) => {
    for (const seed of range(1, volume(20))) {
      const random = new Random(seed);
      const alice = world.name("alice");
      const peers = range(1, 12).map((n) => `${alice}-${n}`);
      await Promise.all(peers.map((uid) => world.send(uid, person(alice), "x", RED)));
      const read = random.flip() ? overHttp(alice) : await onSocket(t, alice);
      const changed = new Set<string>();
      const left = new Set<string>();
      let changesLeft = 30;
      const between = async () => {
        for (let n = random.below(4); n > 0 && changesLeft > 0; n--) {
          changesLeft -= 1;
          const uid = random.pick(peers);
          const target = { uid: alice, ...wire(person(uid)) };
          const kind = random.pick(["send", "send", "read", "unread", "delete"]);
          changed.add(uid);
          if (kind === "send") await world.send(uid, person(alice), "y", RED);
          else if (kind === "read") await world.ok("/conversations/clearUnread", target);
          else if (kind === "unread")
            await world.ok("/conversations/setUnread", { ...target, unread: 1 });
          else {
            await world.ok("/conversations/delete", target);
            left.add(uid);
          }
        }
      };
      const seen = await readAll(read, 1 + random.below(4), between);
      const now = new Map((await read(undefined, 100)).list.map(({ id, state }) => [id, state]));
      for (const uid of peers) {
        const states = seen.filter(({ id }) => id === uid).map(({ state }) => state);
        if (!changed.has(uid)) t.equal(states.length, 1, `seed ${seed}: ${uid} did not change`);
        else if (!left.has(uid))
          t.equal(
            states.at(-1),
            now.get(uid),
            `seed ${seed}: the newest state of ${uid} is listed`,
          );
        t.equal(
          new Set(states).size,
          states.length,
          `seed ${seed}: no state of ${uid} is listed twice`,
        );
      }
    }
  },
);

// Covers [decisions: Paging of conversations]
t.test(
  "a cursor keeps the version of the first page even if a later page is requested with a newer version",
  async (t) => {
    const alice = world.name("alice");
    const peers = range(1, 5).map((n) => `${alice}-${n}`);
    for (const uid of peers) await world.send(uid, person(alice), "x", RED);
    const [newest] = await world.ok("/conversation/sync", { uid: alice });
    const first = await overHttp(alice)(undefined, 2);
    const rest = await overHttp(alice, { version: newest.version })(first.cursor, 9);
    t.same(idsOf(rest.list), peers.slice(0, 3).reverse());
  },
);

// Covers [decisions: Paging of conversations]
t.test("an invalid cursor or the cursor of another user is refused with bad_cursor", async (t) => {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  for (const uid of [alice, bob])
    for (const n of range(1, 3)) await world.send(`${uid}-${n}`, person(uid), "x");
  const { cursor = "" } = await overHttp(alice)(undefined, 1);
  const client = await world.join(t, alice);
  const changed = `${cursor.slice(0, -4)}${cursor.endsWith("AAAA") ? "BBBB" : "AAAA"}`;
  for (const wrong of [
    "x",
    "0",
    "äöü",
    cursor.slice(1),
    `${cursor}AAAA`,
    changed,
    "A".repeat(9000),
  ]) {
    const body = { uid: alice, cursor: wrong };
    t.equal(await world.refusal("/conversation/sync", body), "400 bad_cursor", wrong.slice(0, 9));
    t.equal(await codeOf(client.conversations({ cursor: wrong })), "bad_cursor");
  }
  const sync = (body: object) => world.refusal("/conversation/sync", body);
  t.equal(
    await sync({ uid: bob, cursor }),
    "400 bad_cursor",
    "the cursor of another user is refused",
  );
  t.equal(await sync({ uid: alice, cursor, page: 1 }), "400 bad_request");
  t.equal(await sync({ uid: alice, cursor: 1 }), "400 bad_request");
  t.same((await overHttp(alice)(cursor, 9)).list.length, 2, "the right cursor still works");
});

// Covers [decisions: Paging of conversations]
t.test(
  "a change that is made while a list is read is in that list or in the next list",
  async (t) => {
    const alice = world.name("alice");
    const peers = range(1, 200).map((n) => `${alice}-${n}`);
    await Promise.all(peers.map((uid) => world.send(uid, person(alice), "x", RED)));
    const versionOf = ({ state }: Listed) => Number(state.slice(state.lastIndexOf(",") + 1));
    const random = new Random(19);
    for (let round = 1; round <= volume(80, "JINDOU_TEST_ROUNDS"); round++) {
      const limit = round % 2 === 0 ? undefined : 60;
      const callerStates = new Map<string, string>();
      let version = 0;
      const sync = async () => {
        const list = await readAll(overHttp(alice, { version }), limit);
        for (const { id, state } of list) callerStates.set(id, state);
        version = Math.max(version, ...list.map(versionOf));
      };
      const isNewPeer = random.below(3) === 0;
      const changes = range(1, 60).map(async (n) => {
        const uid = isNewPeer && n % 10 === 0 ? `${alice}-new-${round}-${n}` : random.pick(peers);
        if (n % 4 !== 0 || !peers.includes(uid)) return world.send(uid, person(alice), "y", RED);
        const target = { uid: alice, channel_id: uid, channel_type: 1 };
        return world.ok("/conversations/setUnread", { ...target, unread: random.below(3) });
      });
      await sync();
      await Promise.all(changes);
      await sync();
      const now = (await overHttp(alice)(undefined)).list;
      const stale = now.filter(
        ({ id, state }) =>
          callerStates.get(id)?.replace(/,\d+$/, "") !== state.replace(/,\d+$/, ""),
      );
      t.same(idsOf(stale), [], `round ${round}, seed 19`);
    }
  },
);
