// Tests the limits by address for managers and clients behind a proxy. The peer 127.0.0.1 is a
// trusted proxy. The proxy headers of every other peer must be ignored.

import { connect } from "node:net";
import { openNative } from "../support/native-client.ts";
import { proxyHeader } from "../support/proxy-header.ts";
import { t } from "../support/suite.ts";
import { codeOf, startWorld, TIMEOUT_MS } from "./world.ts";

const PROXY = "127.0.0.1";
const STRANGER = "127.0.0.2";
/** Number of wrong passwords, and of wrong tokens, after which a network is limited. */
const LIMIT = 5;
/** Number of parallel guesses, more than the number of guesses that may wait for a check. */
const CROWD = 24;

const world = await startWorld(t, {
  JINDOU_ADMIN_PASSWORD: "right",
  // `::/0` must not contain the IPv4 addresses of the strangers.
  JINDOU_API_TRUSTED_PROXIES: `${PROXY}, 10.0.0.0/8, ::/0`,
  JINDOU_CLIENT_TRUSTED_PROXIES: `${PROXY}, 10.0.0.0/8, ::/0`,
  JINDOU_AUTH_LOGIN_ATTEMPTS: String(LIMIT),
  JINDOU_AUTH_TOKEN_ATTEMPTS: String(LIMIT),
  JINDOU_AUTH_TOKEN_WINDOW_S: "600",
  JINDOU_CLIENT_AUTH_TIMEOUT_MS: String(TIMEOUT_MS),
});
/** Ports of a single node. */
const { apiPort, clientPort } = world;

/** How a request reaches the node. */
interface Way {
  readonly from: string;
  readonly forwardedFor?: string;
  /** Address in a PROXY header. */
  readonly proxied?: string;
}

let usernames = 0;
/** Tries to log in with a new username that does not exist. Returns the status. */
function guessPassword(way: Way): Promise<string> {
  usernames += 1;
  return login({ username: `guess-${usernames}`, password: "wrong" }, way);
}

function login(credentials: object, { from, forwardedFor, proxied }: Way): Promise<string> {
  const body = JSON.stringify(credentials);
  const lines = [
    "POST /manager/login HTTP/1.1",
    "Host: localhost",
    ...(forwardedFor === undefined ? [] : [`X-Forwarded-For: ${forwardedFor}`]),
    `Content-Length: ${body.length}`,
  ];
  return new Promise((resolve, reject) => {
    const socket = connect({ host: "127.0.0.1", port: apiPort, localAddress: from });
    if (proxied !== undefined) socket.write(proxyHeader(proxied));
    socket.write(`${lines.join("\r\n")}\r\n\r\n${body}`);
    let text = "";
    socket.on("data", (data) => {
      text += data.toString("latin1");
    });
    socket.on("error", reject);
    socket.on("close", () => resolve(/^HTTP\/1.1 (\d+)/.exec(text)?.[1] ?? text));
  });
}

async function guessToken(uid: string, { from, forwardedFor = "" }: Way): Promise<string> {
  const client = await openNative(t, {
    ...{ port: clientPort, uid, token: "guess", localAddress: from, timeoutMs: TIMEOUT_MS },
    headers: { "X-Forwarded-For": forwardedFor },
  });
  return codeOf(client.connect());
}

for (const [name, wayTo] of [
  ["X-Forwarded-For", (at: string): Way => ({ from: PROXY, forwardedFor: `6.6.6.6, ${at}` })],
  ["a PROXY header", (at: string): Way => ({ from: PROXY, proxied: at })],
] as const)
  t.test(
    `wrong passwords sent through a trusted proxy are counted by the address in ${name}`,
    async (t) => {
      const [guesser, other] =
        name === "X-Forwarded-For"
          ? ["203.0.113.1", "203.0.113.2"]
          : ["203.0.113.3", "203.0.113.4"];
      for (let n = 0; n < LIMIT; n++) t.equal(await guessPassword(wayTo(guesser)), "401");
      t.equal(await guessPassword(wayTo(guesser)), "429");
      if (name === "X-Forwarded-For")
        for (const mapped of ["::ffff:203.0.113.1", "::ffff:cb00:7101", "[::FFFF:CB00:7101]:80"])
          t.equal(await guessPassword(wayTo(mapped)), "429", mapped);
      t.equal(await guessPassword(wayTo(other)), "401");
      const right = { username: "admin", password: "right" };
      t.equal(await login(right, wayTo(other)), "200");
      t.equal(await login(right, wayTo(guesser)), "429");
    },
  );

for (const [name, wayTo, from] of [
  [
    "X-Forwarded-For",
    (n: number): Way => ({ from: "127.0.0.3", forwardedFor: `203.0.113.${n}` }),
    "127.0.0.3",
  ],
  [
    "PROXY headers",
    (n: number): Way => ({ from: "127.0.0.4", proxied: `203.0.113.${n}` }),
    "127.0.0.4",
  ],
] as const)
  t.test(
    `wrong passwords from a client that is not a trusted proxy are counted by its own address, even if it sends ${name}`,
    async (t) => {
      for (let n = 0; n < LIMIT; n++) t.equal(await guessPassword(wayTo(100 + n)), "401");
      t.equal(await guessPassword(wayTo(100 + LIMIT)), "429");
      t.equal(await guessPassword({ from }), "429");
      const claimed = { from: PROXY, forwardedFor: "203.0.113.100" };
      t.equal(await guessPassword(claimed), "401", "the claimed address is not limited");
    },
  );

t.test(
  "wrong tokens sent through a trusted proxy are counted per network of the client's address",
  async (t) => {
    const way = (at: string): Way => ({ from: PROXY, forwardedFor: `${at}, 10.1.1.1` });
    for (let n = 0; n < LIMIT; n++)
      t.equal(await guessToken("alice", way("2001:db8::1")), "unauthorized");
    const guesses = Array.from({ length: CROWD }, (_, n) =>
      guessToken(`victim${n}`, way(`2001:db8::${n + 2}`)),
    );
    t.ok((await Promise.all(guesses)).includes("rate_limited"), "the whole /64 is limited");
    for (let n = 0; n < CROWD; n++)
      t.equal(await guessToken(`victim${n}`, way(`2001:db8:0:${n + 1}::1`)), "unauthorized");
  },
);

t.test(
  "wrong tokens from a client that is not a trusted proxy are counted by its own address",
  async (t) => {
    const way = (n: number): Way => ({ from: STRANGER, forwardedFor: `198.51.100.${n}` });
    for (let n = 0; n < LIMIT; n++) t.equal(await guessToken("bob", way(n)), "unauthorized");
    const guesses = Array.from({ length: CROWD }, (_, n) => guessToken(`victim${n}`, way(100 + n)));
    t.ok((await Promise.all(guesses)).includes("rate_limited"));
  },
);

t.test("GET /connz reports the address of a client behind a trusted proxy", async (t) => {
  await world.register("carol");
  const connectFrom = async (from: string) => {
    const client = await openNative(t, {
      ...{ port: clientPort, uid: "carol", token: "token-carol", localAddress: from },
      headers: { "X-Forwarded-For": "6.6.6.6, 192.0.2.7" },
    });
    await client.connect();
    const page = await fetch(`http://127.0.0.1:${apiPort}/connz?uid=carol`);
    const { connections } = (await page.json()) as { connections: { ip: string }[] };
    client.kill();
    await client.closed;
    await world.offline("carol");
    return connections.map(({ ip }) => ip);
  };
  t.same(await connectFrom(PROXY), ["192.0.2.7"]);
  t.same(await connectFrom("127.0.0.5"), ["127.0.0.5"]);
});
