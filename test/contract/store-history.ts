// Store contract: reading stored messages, and their expiry.

import type { Test } from "tap";
import type { SessionRecord } from "../../src/broker/model.ts";
import { joinStateOf } from "./join-request.ts";
import { ALL, draftOf, type FixtureFactory, type StoreFixture, seqsOf } from "./store-fixture.ts";

const SESSION: SessionRecord = {
  ...{ sessionId: "s", nodeId: "n", uid: "a" },
  ...{ flag: 0, level: 0, deviceId: "", tokenTag: "" },
};

export async function history(t: Test, createFixture: FixtureFactory): Promise<void> {
  const read = async ({ store }: StoreFixture, over: Partial<typeof ALL>) => {
    const slice = await store.readMessages("2:g", { ...ALL, ...over });
    return { seqs: seqsOf(slice.messages), more: slice.more };
  };

  t.test("an unknown channel has no messages", async (t) => {
    const fixture = await createFixture(t);
    t.same(await read(fixture, {}), { seqs: [], more: false });
    t.equal(await fixture.store.headSeq("2:g"), 0);
  });

  t.test(
    "messages are read by range, limit and direction, before and after a restart",
    async (t) => {
      const fixture = await createFixture(t);
      const send = () => fixture.store.append(draftOf());
      for (let i = 0; i < 5; i++) await send();
      await fixture.reopen();
      for (let i = 0; i < 5; i++) await send();
      const cases: [Partial<typeof ALL>, number[], boolean][] = [
        [{}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], false],
        [{ reverse: true }, [10, 9, 8, 7, 6, 5, 4, 3, 2, 1], false],
        [{ fromSeq: 4, toSeq: 7 }, [4, 5, 6, 7], false],
        [{ fromSeq: 4, toSeq: 7, reverse: true }, [7, 6, 5, 4], false],
        [{ limit: 3 }, [1, 2, 3], true],
        [{ limit: 3, reverse: true }, [10, 9, 8], true],
        [{ fromSeq: 3, toSeq: 8, limit: 4 }, [3, 4, 5, 6], true],
        [{ fromSeq: 3, toSeq: 8, limit: 6, reverse: true }, [8, 7, 6, 5, 4, 3], false],
        [{ fromSeq: 0, toSeq: 2 }, [1, 2], false],
        [{ fromSeq: 10 }, [10], false],
        [{ fromSeq: 11 }, [], false],
        [{ fromSeq: 7, toSeq: 6 }, [], false],
      ];
      for (const [over, seqs, more] of cases)
        t.same(await read(fixture, over), { seqs, more }, JSON.stringify(over));
    },
  );

  t.test(
    "joinState returns the caller's seq, or the last seq before the seqs that were reused for other messages",
    async (t) => {
      const fixture = await createFixture(t);
      const ids = [0];
      const send = async () => ids.push((await fixture.store.append(draftOf())).messageId);
      for (let i = 0; i < 4; i++) await send();
      await fixture.reopen();
      for (let i = 0; i < 4; i++) await send();
      const cases = [
        ...[1, 3, 4, 5, 7, 8].map((seq) => [8, ids[seq], seq]),
        [8, (ids[1] ?? 0) - 1, 0],
        [20, ids[8], 20],
        [20, ids[6], 6],
        [3, ids[8], 3],
        [3, ids[2], 2],
        [Number.MAX_SAFE_INTEGER, ids[1], 1],
      ];
      const positions = [
        ...cases.map(([lastSeq = 0, lastId = 0]) => ({ key: "2:g", lastSeq, lastId })),
        { key: "2:g", lastSeq: 20, lastId: 0 },
        { key: "2:none", lastSeq: 5, lastId: 7 },
      ];
      // The positions alternate with positions in personal channels of many buckets.
      const between = positions.flatMap((position, at) => [
        position,
        { key: `1:peer${at}@zoe`, lastSeq: at, lastId: 0 },
      ]);
      const mixed = await joinStateOf(fixture.store, "alice", { positions: between });
      const { resumeSeqs } = await joinStateOf(fixture.store, "alice", { positions });
      for (const [at, seqs] of resumeSeqs.entries()) {
        t.same(mixed.resumeSeqs[2 * at], seqs);
        t.same(mixed.resumeSeqs[2 * at + 1], { headSeq: 0, lastCommonSeq: at });
      }
      t.same(resumeSeqs, [
        ...cases.map(([, , lastCommonSeq]) => ({ headSeq: 8, lastCommonSeq })),
        { headSeq: 8, lastCommonSeq: 20 }, // an id of 0 matches every history
        { headSeq: 0, lastCommonSeq: 5 },
      ]);
    },
  );

  t.test(
    "every message after a login has an id above the newestId of the login, even if the clock is set back",
    async (t) => {
      const fixture = await createFixture(t);
      await fixture.store.append(draftOf());
      const newestIdOf = async (): Promise<number> => {
        const login = await fixture.store.login(SESSION, "n:1");
        return login.kind === "entered" ? login.newestId : Number.NaN;
      };
      const newestId = await newestIdOf();
      for (const stepMs of [0, -5000, -3_600_000]) {
        fixture.nowMs += stepMs;
        const later = await fixture.store.append(draftOf());
        t.ok(later.messageId > newestId, `after a step of ${stepMs} ms`);
      }
      await fixture.reopen();
      const newest = await newestIdOf();
      t.ok((await fixture.store.append(draftOf())).messageId > newest, "after a restart");
    },
  );

  t.test("maxBytes limits a page, but every page contains at least one message", async (t) => {
    const fixture = await createFixture(t);
    const payload = new Uint8Array(100);
    for (let i = 0; i < 4; i++) await fixture.store.append(draftOf({ payload }));
    t.same(await read(fixture, { maxBytes: 250 }), {
      seqs: [1, 2],
      more: true,
    });
    t.same(await read(fixture, { maxBytes: 1 }), { seqs: [1], more: true });
    t.same(await read(fixture, { maxBytes: 1, reverse: true }), {
      seqs: [4],
      more: true,
    });
    t.same(await read(fixture, { maxBytes: 400 }), {
      seqs: [1, 2, 3, 4],
      more: false,
    });
  });

  t.test("messages of both users of a personal channel are stored in one history", async (t) => {
    const { store } = await createFixture(t);
    await store.append(draftOf({ channel: { id: "bob", type: 1 }, fromUid: "alice" }));
    await store.append(draftOf({ channel: { id: "alice", type: 1 }, fromUid: "bob" }));
    const { messages } = await store.readMessages("1:alice@bob", ALL);
    t.same(
      messages.map((message) => message.fromUid),
      ["alice", "bob"],
    );
    t.same(
      messages.map((message) => message.channel.id),
      ["bob", "alice"],
    );
  });
}

export async function time(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a message can be read until it expires, even after a restart", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.append(draftOf({ expireS: 10 }));
    await fixture.store.append(draftOf());
    const readSeqs = async () => seqsOf((await fixture.store.readMessages("2:g", ALL)).messages);
    fixture.nowMs += 9_999;
    t.same(await readSeqs(), [1, 2]);
    fixture.nowMs += 1;
    t.same(await readSeqs(), [2]);
    fixture.nowMs -= 1;
    await fixture.reopen();
    t.same(await readSeqs(), [1, 2]);
    fixture.nowMs += 1;
    t.same(await readSeqs(), [2]);
    t.equal(await fixture.store.headSeq("2:g"), 2);
  });

  t.test(
    "a retry with a clientMsgNo that was reused after the dedupe window returns the result of the newer message",
    async (t) => {
      const fixture = await createFixture(t);
      for (const noPersist of [true, false]) {
        const channel = { id: `g ${noPersist}`, type: 2 } as const;
        const send = (noPersist: boolean) => {
          const header = { noPersist, redDot: true };
          return fixture.store.append(draftOf({ channel, header, clientMsgNo: "n" }));
        };
        const { key, fromUid } = draftOf({ channel });
        const stored = () => fixture.store.seqOfRetry(key, fromUid, "n");
        const first = await send(noPersist);
        fixture.nowMs += 86_399_999;
        t.same(await send(!noPersist), { ...first, duplicate: true });
        t.equal(await stored(), first.messageSeq || undefined);
        t.equal(await fixture.store.seqOfRetry(key, "another", "n"), undefined);
        fixture.nowMs += 1;
        t.equal(await stored(), undefined);
        const second = await send(!noPersist);
        t.equal(second.duplicate, false);
        await fixture.store.sweep();
        const retryResult = { ...second, duplicate: true };
        t.same(await send(noPersist), retryResult);
        await fixture.reopen();
        t.same(await send(noPersist), retryResult);
        t.equal(await stored(), second.messageSeq || undefined);
      }
    },
  );

  t.test("an access token is valid only until its expiry time", async (t) => {
    const fixture = await createFixture(t);
    const hash = new Uint8Array(32).fill(7);
    await fixture.store.putAccessToken(hash, "admin", fixture.nowMs + 1000);
    fixture.nowMs += 999;
    t.equal(await fixture.store.accessTokenOwner(hash), "admin");
    fixture.nowMs += 1;
    t.equal(await fixture.store.accessTokenOwner(hash), undefined);
  });
}
