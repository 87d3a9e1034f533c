// REFRESH: a client replaces the JWT of its session on the open connection.

import type { ChannelRef } from "../../src/broker/model.ts";
import { jsonRpcWire } from "../support/jsonrpc-wire.ts";
import { HMAC_KEY, keyFile, mint, SECRET } from "../support/mint.ts";
import { t } from "../support/suite.ts";
import { nativeWire } from "../support/wire.ts";
import {
  codeOf,
  endingOf,
  eventually,
  person,
  range,
  receivedTexts,
  startWorld,
  textsOf,
} from "./world.ts";

const CHAIN = 1000;

const world = await startWorld(t, {
  JINDOU_AUTH_CLIENTS: "token+jwt",
  JINDOU_AUTH_JWT_SECRET_FILE: await keyFile(t, SECRET),
  JINDOU_AUTH_JWT_ALGORITHMS: "HS256",
  JINDOU_AUTH_JWT_CLOCK_TOLERANCE_S: "0",
  JINDOU_AUTH_TOKEN_ATTEMPTS: "1000000",
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
});

const tokenOf = (uid: string, expiresInS: number, claims: object = {}) =>
  mint(HMAC_KEY, { sub: uid, ...claims }, { expiresInS });

for (const [format, wireOf] of [
  ["the native protocol", nativeWire],
  ["JSON-RPC", jsonRpcWire],
] as const) {
  // Covers [feature: REFRESH]
  t.test(
    `a session whose JWT is refreshed over ${format} outlives the JWT of its login`,
    async (t) => {
      const [ann, ben] = [world.name("ann"), world.name("ben")];
      const token = await tokenOf(ann, 3);
      const client = await world.connect(t, ann, { token, wire: wireOf(ann) });
      const other = await world.connect(t, ben, {
        ...{ token: await tokenOf(ben, 3), wire: wireOf(ben) },
      });
      const { connack } = client;
      t.ok((connack.expiresInS ?? -1) >= 0 && (connack.expiresInS ?? 9) <= 3);
      const refreshed = await client.refresh(await tokenOf(ann, 600));
      const { expiresInS = 0, sessionId, nodeId, newestId, limits, resume } = refreshed;
      t.ok(
        expiresInS > 500 && expiresInS <= 600,
        "the reply has the remaining lifetime of the new token",
      );
      t.same(
        { sessionId, nodeId, newestId, limits, resume },
        {
          ...{ sessionId: connack.sessionId, nodeId: connack.nodeId, newestId: connack.newestId },
          ...{ limits: connack.limits, resume: [] },
        },
        "the reply is a CONNACK of the same session",
      );
      t.equal(await endingOf(other), "token_expired 4103", "the other session has expired");
      t.match(
        other.events,
        [{ fromUid: "____system", type: "auth.expiring", data: /^\{"expiresInS":\d\}$/ }],
        "the expiry was announced",
      );
      t.equal(await codeOf(client.send(person(ann), "still here")), "ok");
    },
  );

  // Covers [feature: REFRESH]
  t.test(
    `a REFRESH over ${format} replaces the session's rights with those of the new JWT`,
    async (t) => {
      const [ann, ben] = [world.name("ann"), world.name("ben")];
      const [first, second] = [await world.newGroup([ann, ben]), await world.newGroup([ann, ben])];
      const refresh = async (expiresInS: number, read?: readonly string[]) =>
        client.refresh(await tokenOf(ann, expiresInS, read && { jd: { read } }));
      const token = await tokenOf(ann, 100, { jd: { read: [`2:${first.id}`] } });
      const client = await world.connect(t, ann, { token, wire: wireOf(ann) });
      const sendAll = async (text: string) => {
        for (const channel of [first, second, person(ann)])
          await world.send(ben, channel, `${text} ${channel.id}`);
      };
      const joined = (channel: ChannelRef) =>
        eventually(async () => {
          await world.send(ben, channel, "probe");
          await client.ping();
          return client.messages.some((message) => message.channel.id === channel.id);
        });
      const received = async (...texts: readonly string[]) => {
        const last = texts.at(-1) ?? "";
        await client.waitFor(({ messages }) => textsOf(messages).includes(last), last);
        const all = await receivedTexts(client);
        t.same([...new Set(all)].filter((text) => text !== "probe").toSorted(), texts.toSorted());
      };
      await sendAll("old");
      await received(`old ${first.id}`);
      await refresh(200, [`2:${second.id}`]);
      t.equal(await codeOf(client.history(first)), "forbidden");
      await joined(second);
      await sendAll("narrow");
      await received(`old ${first.id}`, `narrow ${second.id}`);
      await refresh(300);
      await world.send(ben, person(ann), "in person");
      await client.waitFor(({ messages }) => textsOf(messages).includes(`narrow ${first.id}`));
      await received(
        ...[`old ${first.id}`, `narrow ${second.id}`, `narrow ${first.id}`, "in person"],
      );
    },
  );

  // Covers [feature: REFRESH]
  t.test(
    `a refused REFRESH over ${format} leaves the session open and its JWT in effect`,
    async (t) => {
      const [ann, ben] = [world.name("ann"), world.name("ben")];
      const client = await world.connect(t, ann, {
        ...{ token: await tokenOf(ann, 100), wire: wireOf(ann) },
      });
      const refusals = [
        [await tokenOf(ben, 600), "unauthorized"],
        [await tokenOf(ann, 600, { device_flag: 2 }), "unauthorized"],
        [await tokenOf(ann, 50), "unauthorized"],
        [`${await tokenOf(ann, 600)}x`, "unauthorized"],
        [await mint(HMAC_KEY, { sub: ann }, { expiresInS: -60, ageS: 120 }), "token_expired"],
        ["", "unauthorized"],
        ["x".repeat(4097), "bad_request"],
      ] as const;
      for (const [token, code] of refusals) t.equal(await codeOf(client.refresh(token)), code);
      const { expiresInS = 0 } = await client.refresh(await tokenOf(ann, 101));
      t.ok(expiresInS > 0 && expiresInS <= 101);
      const registered = await world.join(t, ben, { wire: wireOf(ben) });
      t.equal(registered.connack.expiresInS, undefined, "a registered token does not expire");
      t.equal(await codeOf(registered.refresh(await tokenOf(ben, 600))), "bad_request");
      t.equal(await codeOf(registered.send(person(ben), "still here")), "ok");
    },
  );
}

// Covers [feature: REFRESH]
t.test(`a session can refresh its JWT ${CHAIN} times`, async (t) => {
  const ann = world.name("ann");
  const client = await world.connect(t, ann, { token: await tokenOf(ann, 100) });
  const tokens = await Promise.all(range(1, CHAIN).map((at) => tokenOf(ann, 100 + at)));
  let lastS = 0;
  for (const token of tokens) {
    const { expiresInS = 0 } = await client.refresh(token);
    if (expiresInS < lastS) t.fail(`a refresh returned ${expiresInS} after ${lastS}`);
    lastS = expiresInS;
  }
  t.ok(lastS > CHAIN, `the last token expires in ${lastS} s`);
});
