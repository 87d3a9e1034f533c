// Sessions that end in the middle of something: a kick while the loser resumes or sends, a token
// change or a device quit at the instant of a login. Whatever comes first, in the end only who
// holds the valid token is online.

import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { CLOSE_REASONS, type CloseReason } from "../../src/broker/errors.ts";
import { type ChannelRef, GROUP_CHANNEL } from "../../src/broker/model.ts";
import { type Broker, spawnBroker, textPayload } from "../support/broker.ts";
import type { NativeClient } from "../support/native-session.ts";
import { textOf } from "../support/native-session.ts";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import {
  eventually,
  farewellOf,
  logIn,
  logInAtOnce,
  openSocket,
  registerMain,
  standingOf,
  TOKEN,
} from "./logins.ts";

const ROUNDS = Math.ceil(volume(200, "JINDOU_TEST_ROUNDS") / 8);
const BACKLOG = 400;
/** A run of a resume, a quarter of the buffer, holds one message of the backlog. */
const SHORT_RUNS = {
  JINDOU_CLIENT_MAX_BUFFERED_BYTES: "65536",
  JINDOU_CLIENT_MAX_FRAME_BYTES: "65536",
  JINDOU_MESSAGES_MAX_PAYLOAD_BYTES: "32768",
};
const BACKLOG_TEXT_BYTES = 9000;
/** Tries until a kick fell into the resuming often enough. */
const MOST_RESUMES = 40;
const SEND_WINDOW = 16;
const TEAM: ChannelRef = { id: "team", type: GROUP_CHANNEL };
const ANN = { uid: "ann", token: TOKEN };
const ONLINE = { online: 1, flag: 0, sessions: 1, connections: 1 };
const OFFLINE = { online: 0, flag: 0, sessions: 0, connections: 0 };

const team = { channel_id: TEAM.id, channel_type: TEAM.type };

async function createTeam(broker: Broker): Promise<void> {
  const body = { ...team, subscribers: ["ann", "bob"] };
  const { status } = await broker.call("/channel", body);
  if (status !== 200) throw new Error(`channel: ${status}`);
}

async function fillTeam(broker: Broker, count: number): Promise<void> {
  const send = (no: number) =>
    broker.call("/message/send", {
      ...team,
      from_uid: "bob",
      payload: textPayload(`backlog ${no}`.padEnd(BACKLOG_TEXT_BYTES)),
    });
  await Promise.all(Array.from({ length: count }, (_, no) => send(no + 1)));
}

/** How far a resuming client came, after it was checked that its runs have no gap and no repeat. */
function resumedThrough(t: Test, client: NativeClient): number {
  let cursor = 0;
  for (const push of client.pushes) {
    if (push.kind !== "messages") continue;
    if (push.afterSeq !== cursor) t.fail(`${push.afterSeq} after ${cursor}`);
    if (push.messages.length > 1) t.fail("a run holds one message");
    cursor = push.throughSeq;
  }
  const seqs = client.messages.map(({ messageSeq }) => messageSeq);
  const expected = Array.from({ length: cursor }, (_, i) => i + 1);
  t.same(seqs, expected, "every message once and in order");
  return cursor;
}

t.test(
  "a device kicked while it resumes got its channel without a gap up to there, and nothing after its farewell",
  async (t) => {
    const broker = await spawnBroker(t, SHORT_RUNS);
    await registerMain(broker, "ann");
    await createTeam(broker);
    await fillTeam(broker, BACKLOG);
    const resume = [{ channel: TEAM, lastSeq: 0 }];
    let cutShort = 0;
    for (let round = 0; round < MOST_RESUMES && cutShort < 3; round++) {
      const winner = await openSocket(broker, { ...ANN, resume });
      const loser = await logIn(broker, { ...ANN, resume });
      await winner.connect();
      const { code } = await loser.closed;
      t.equal(code, CLOSE_REASONS.kicked.code);
      t.equal(farewellOf(loser), "kicked");
      if (resumedThrough(t, loser) < BACKLOG) cutShort += 1;
      await winner.waitFor(() => winner.messages.length >= BACKLOG);
      t.equal(resumedThrough(t, winner), BACKLOG);
      t.same(await standingOf(broker, "ann"), ONLINE);
      await winner.disconnect();
    }
    t.ok(cutShort > 0, "kicks fell into the resuming");
  },
);

t.test("two that log in at once and resume: the one that remains gets everything", async (t) => {
  const broker = await spawnBroker(t, SHORT_RUNS);
  await registerMain(broker, "ann");
  await createTeam(broker);
  await fillTeam(broker, BACKLOG);
  const device = { ...ANN, resume: [{ channel: TEAM, lastSeq: 0 }] };
  for (let round = 0; round < 5; round++) {
    const { left, ended } = await logInAtOnce(broker, [device, device]);
    for (const { client } of ended) {
      t.equal(farewellOf(client), "kicked");
      resumedThrough(t, client);
    }
    for (const winner of left) {
      await winner.waitFor(() => winner.messages.length >= BACKLOG);
      t.equal(resumedThrough(t, winner), BACKLOG);
      await winner.disconnect();
    }
  }
});

t.test(
  "a device kicked while it sends: what was acknowledged is stored, in order and once, and nothing is answered after its farewell",
  async (t) => {
    const settings = { JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0" };
    const broker = await spawnBroker(t, settings);
    await registerMain(broker, "ann");
    await createTeam(broker);
    const random = new Random(1);
    let brokenOff = 0;
    let head = 0;
    for (let round = 0; round < 8; round++) {
      const loser = await logIn(broker, ANN);
      const text = (no: number) => `round ${round} send ${no}`;
      const sending = sendUntilClosed(loser, text);
      await pause(random.below(40));
      const winner = await logIn(broker, ANN);
      const { code } = await loser.closed;
      t.equal(code, CLOSE_REASONS.kicked.code);
      t.equal(farewellOf(loser), "kicked");
      const { sent, acknowledged } = await sending;
      brokenOff += sent - acknowledged;
      const all = await textsAfter(winner, head);
      head += all.length;
      const stored = all.filter((one) => one.startsWith(`round ${round} `));
      t.equal(stored.length, all.length, "nothing of a round before comes late");
      const expected = stored.map((_, no) => text(no));
      t.same(stored, expected, "stored in the order sent, each once");
      t.ok(stored.length >= acknowledged, "nothing acknowledged is missing");
      await winner.disconnect();
    }
    t.ok(brokenOff > 0, "kicks fell into the sending");
  },
);

/** The texts of the whole history after a seq. */
async function textsAfter(client: NativeClient, afterSeq: number): Promise<readonly string[]> {
  const texts: string[] = [];
  let more = true;
  while (more) {
    const fromSeq = afterSeq + texts.length + 1;
    const page = await client.history(TEAM, { fromSeq, limit: 500 });
    texts.push(...page.messages.map(textOf));
    more = page.more;
  }
  return texts;
}

/** Keeps a window of sends under way until the connection ends. */
async function sendUntilClosed(
  client: NativeClient,
  text: (no: number) => string,
): Promise<{ readonly sent: number; readonly acknowledged: number }> {
  let sent = 0;
  let acknowledged = 0;
  const worker = async () => {
    for (;;) {
      const no = sent;
      sent += 1;
      await client.send(TEAM, text(no), { clientMsgNo: text(no) });
      acknowledged += 1;
    }
  };
  const workers = Array.from({ length: SEND_WINDOW }, worker);
  await Promise.allSettled(workers);
  return { sent, acknowledged };
}

interface Race {
  /** What comes at the instant of the login. */
  readonly path: string;
  readonly body: object;
  /** How a session that was there before it ends. */
  readonly reason: CloseReason;
}

/**
 * Logs in with the token and makes the call at once, one of both a little earlier; in the end
 * nobody may be online.
 */
async function raceLogin(t: Test, broker: Broker, race: Race): Promise<void> {
  const random = new Random(ROUNDS);
  const endings = new Map<string, number>();
  for (let round = 0; round < ROUNDS; round++) {
    await registerMain(broker, "ann");
    const headStartMs = random.below(3);
    const isCallFirst = random.flip();
    const call = async () => {
      if (!isCallFirst) await pause(headStartMs);
      return broker.call(race.path, race.body);
    };
    const logins = async () => {
      if (isCallFirst) await pause(headStartMs);
      return logInAtOnce(broker, [ANN, ANN], { survivors: 0 });
    };
    const [{ status }, { ended }] = await Promise.all([call(), logins()]);
    t.equal(status, 200);
    for (const { client, closeCode } of ended) {
      const ending = farewellOf(client) ?? "silent";
      endings.set(ending, (endings.get(ending) ?? 0) + 1);
      const expected = [race.reason, "kicked", "auth_failed"] as const;
      const known = expected.find((reason) => reason === ending);
      t.equal(known && CLOSE_REASONS[known].code, closeCode);
    }
    await eventually("nobody to be online", async () => {
      const standing = await standingOf(broker, "ann");
      return JSON.stringify(standing) === JSON.stringify(OFFLINE);
    });
    await t.rejects(logIn(broker, ANN), { code: "unauthorized" });
  }
  t.comment([...endings].map(([why, count]) => `${why} ${count}`).join(", "));
}

t.test(
  "a token change at the instant of logins: no session of the old token is left, and the new one logs in",
  async (t) => {
    const broker = await spawnBroker(t);
    const device = { device_flag: 0, device_level: 1 };
    await raceLogin(t, broker, {
      path: "/user/token",
      body: { uid: "ann", token: "new", ...device },
      reason: "token_changed",
    });
    const client = await logIn(broker, { uid: "ann", token: "new" });
    t.same(await standingOf(broker, "ann"), ONLINE);
    await client.disconnect();
  },
);

t.test(
  "a device quit at the instant of logins: no session is left, and the token is worthless",
  async (t) => {
    const broker = await spawnBroker(t);
    await raceLogin(t, broker, {
      path: "/user/device_quit",
      body: { uid: "ann", device_flag: -1 },
      reason: "logged_out",
    });
  },
);

t.test("registering the same token at the instant of a login ends nobody", async (t) => {
  const broker = await spawnBroker(t);
  await registerMain(broker, "ann");
  for (let round = 0; round < ROUNDS; round++) {
    const [client] = await Promise.all([logIn(broker, ANN), registerMain(broker, "ann")]);
    await client.ping();
    t.equal(farewellOf(client), undefined);
    t.same(await standingOf(broker, "ann"), ONLINE);
    await client.disconnect();
  }
});
