// The backend of the crash test. It keeps changing tokens, members, flags, channels and manager
// logins until the broker is killed, and then checks that every answered change still holds. Keeps
// the changes that were certainly answered and the one call that was interrupted.

import type { Test } from "tap";
import { GROUP_CHANNEL } from "../../src/broker/model.ts";
import type { ApiResponse, Broker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { NativeClientError } from "../support/native-session.ts";
import type { Shutdown } from "./crash-load.ts";
import { ADMIN_PASSWORD, STATIC_TOKEN, TOKEN } from "./crash-names.ts";

const TIMEOUT_MS = 120_000;
/**
 * A member of the hall and of every created channel, and sometimes of the club. Its token never
 * changes.
 */
const WITNESS = "witness";
/** A user whose token changes all the time. */
const CAROL = "carol";
const CLUB = { channel_id: "club", channel_type: GROUP_CHANNEL };
const HALL = { channel_id: "hall", channel_type: GROUP_CHANNEL };

/**
 * A value that HTTP calls change. After a crash it is the value set by the last answered call or by
 * the interrupted call.
 */
class Cell<T> {
  #possible: readonly T[];

  constructor(value: T) {
    this.#possible = [value];
  }

  get possible(): readonly T[] {
    return this.#possible;
  }

  async change(to: T, call: () => Promise<void>): Promise<void> {
    this.#possible = [...this.#possible, to];
    await call();
    this.#possible = [to];
  }

  /** Records the value found after a crash. Returns false if `value` is not a possible value. */
  settle(value: T | undefined): boolean {
    if (value === undefined || !this.#possible.includes(value)) return false;
    this.#possible = [value];
    return true;
  }
}

export class Control {
  readonly #token = new Cell("carol-0");
  readonly #isMember = new Cell(false);
  readonly #isBanned = new Cell(false);
  readonly #channels: string[] = [];
  readonly #managerTokens: string[] = [];
  readonly #endedTokens: string[] = [];
  #changes = 0;
  #interruptedChannel: string | undefined;

  /** Registers the users and creates the channels. */
  async prepare(broker: Broker): Promise<void> {
    await setToken(broker, WITNESS, TOKEN);
    await setToken(broker, CAROL, "carol-0");
    await ok(call(broker, "/channel", CLUB));
    await ok(call(broker, "/channel", { ...HALL, subscribers: [WITNESS] }));
  }

  /** Changes one value after the other until the broker is about to be killed. */
  async run(broker: Broker, shutdown: Shutdown): Promise<void> {
    try {
      await this.#login(broker);
      while (!shutdown.isBegun) {
        this.#changes += 1;
        await this.#changeToken(broker);
        await this.#changeMember(broker);
        await this.#changeFlag(broker);
        await this.#createChannel(broker);
      }
    } catch (error) {
      if (!shutdown.isBegun) throw error;
    }
  }

  /** Asserts that every change answered before the crash still holds. */
  async verify(t: Test, broker: Broker): Promise<void> {
    const accepted: string[] = [];
    for (const token of this.#token.possible)
      if (await isAccepted(broker, token)) accepted.push(token);
    t.equal(accepted.length, 1, "exactly one token is valid");
    t.ok(
      this.#token.settle(accepted[0]),
      "the valid token was set by the last acknowledged call or by the interrupted one",
    );
    const [club] = await memberships(broker, ["club"]);
    t.ok(
      this.#isMember.settle(club),
      "the membership was set by the last acknowledged call or by the interrupted one",
    );
    t.ok(
      this.#isBanned.settle(await isBanned(broker)),
      "the ban was set by the last acknowledged call or by the interrupted one",
    );
    await this.#verifyChannels(t, broker);
    await this.#verifyManagers(t, broker);
  }

  async #changeToken(broker: Broker): Promise<void> {
    const token = `carol-${this.#changes}`;
    await this.#token.change(token, () => setToken(broker, CAROL, token));
  }

  async #changeMember(broker: Broker): Promise<void> {
    const add = !this.#isMember.possible[0];
    const path = add ? "/channel/subscriber_add" : "/channel/subscriber_remove";
    const body = { ...CLUB, subscribers: [WITNESS] };
    await this.#isMember.change(add, () => ok(call(broker, path, body)));
  }

  async #changeFlag(broker: Broker): Promise<void> {
    const ban = !this.#isBanned.possible[0];
    const body = { ...HALL, ban: ban ? 1 : 0 };
    await this.#isBanned.change(ban, () => ok(call(broker, "/channel/info", body)));
  }

  async #createChannel(broker: Broker): Promise<void> {
    const id = `room-${this.#changes}`;
    this.#interruptedChannel = id;
    await ok(createRoom(broker, id));
    this.#interruptedChannel = undefined;
    this.#channels.push(id);
  }

  async #login(broker: Broker): Promise<void> {
    const login = async () => {
      const credentials = { username: "admin", password: ADMIN_PASSWORD };
      const { status, body } = await broker.call("/manager/login", credentials);
      if (status !== 200) throw new Error(`/manager/login responded with ${status} ${body.code}`);
      return String(body.token);
    };
    this.#managerTokens.push(await login());
    const ended = await login();
    await ok(broker.call("/manager/logout", {}, bearer(ended)));
    this.#endedTokens.push(ended);
  }

  async #verifyChannels(t: Test, broker: Broker): Promise<void> {
    const id = this.#interruptedChannel;
    if (id !== undefined) {
      const { status } = await createRoom(broker, id);
      t.ok(status === 200 || status === 409, "an interrupted creation can be repeated");
      this.#interruptedChannel = undefined;
      this.#channels.push(id);
    }
    const newest = this.#channels.at(-1);
    if (newest !== undefined)
      t.equal((await createRoom(broker, newest)).status, 409, "an acknowledged channel exists");
    const memberOf = await memberships(broker, this.#channels.slice(-500));
    t.notOk(memberOf.includes(false), "every channel has its subscriber");
  }

  async #verifyManagers(t: Test, broker: Broker): Promise<void> {
    const statusWith = async (token: string) =>
      (await broker.call("/migrate/result", undefined, bearer(token))).status;
    for (const token of this.#managerTokens.slice(-10))
      t.equal(await statusWith(token), 200, "an access token is valid");
    for (const token of this.#endedTokens.slice(-10))
      t.equal(await statusWith(token), 401, "a token that was logged out stays invalid");
  }
}

/** Registers a user's token. Throws unless the response is 200. */
export async function setToken(broker: Broker, uid: string, token: string): Promise<void> {
  await ok(call(broker, "/user/token", { uid, token, device_flag: 0 }));
}

/** Calls the broker with the static API token. */
export function call(broker: Broker, path: string, body?: unknown): Promise<ApiResponse> {
  return broker.call(path, body, { token: STATIC_TOKEN });
}

/** Throws unless the response is 200. */
export async function ok(response: Promise<ApiResponse>): Promise<void> {
  const { status, body } = await response;
  if (status !== 200) throw new Error(`${status} ${body.code}`);
}

const bearer = (token: string) => ({ authorization: `Bearer ${token}` });

function createRoom(broker: Broker, id: string): Promise<ApiResponse> {
  const room = { channel_id: id, channel_type: GROUP_CHANNEL };
  return call(broker, "/channel", { ...room, subscribers: [WITNESS] });
}

async function isAccepted(broker: Broker, token: string): Promise<boolean> {
  const port = broker.clientPort;
  try {
    const carol = { uid: CAROL, port, token, timeoutMs: TIMEOUT_MS };
    const client = await connectNative(undefined, carol);
    await client.close();
    return true;
  } catch (error) {
    if (error instanceof NativeClientError && error.code === "unauthorized") return false;
    throw error;
  }
}

/**
 * Returns for each channel whether the witness is a member, from the resume results of a connect.
 */
async function memberships(broker: Broker, ids: readonly string[]): Promise<readonly boolean[]> {
  const client = await connectNative(undefined, {
    uid: WITNESS,
    port: broker.clientPort,
    token: TOKEN,
    timeoutMs: TIMEOUT_MS,
    resume: ids.map((id) => ({
      channel: { id, type: GROUP_CHANNEL },
      lastSeq: 0,
    })),
  });
  await client.close();
  return client.connack.resume.map(({ status }) => status === "ok");
}

async function isBanned(broker: Broker): Promise<boolean> {
  const { status, body } = await call(broker, "/message/send", {
    ...HALL,
    from_uid: WITNESS,
    payload: Buffer.from('{"type":1,"content":"?"}').toString("base64"),
    header: { no_persist: 1 },
  });
  if (status === 200) return false;
  if (body.code === "channel_banned") return true;
  throw new Error(`${status} ${body.code}`);
}
