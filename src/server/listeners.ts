// Creates the listeners of a node. Backends and clients have one listener each, or share one
// listener. `api.compatListen` and WKProto over TCP have separate listeners. Keeps no state.

import { PacketFramer } from "../compat/wukongim/wkproto/framer.ts";
import { WKPROTO } from "../compat/wukongim/wkproto/wkproto.ts";
import type { Config } from "../config/schema.ts";
import type { Gateway } from "../gateway/endpoint.ts";
import { type Address, parseAddress, sameAddress } from "../lib/address.ts";
import { roomLogger } from "../observe/logger.ts";
import { ClientSockets } from "../transport/client-sockets.ts";
import { DescriptorReserve, socketCapacity } from "../transport/descriptors.ts";
import type { HeadProblem, TlsFiles } from "../transport/driver.ts";
import { loadPortable } from "../transport/drivers.ts";
import { BodyBudget } from "../transport/http-body.ts";
import { createListener, createTcpListener } from "../transport/listener.ts";
import { SocketLimits } from "../transport/socket-limits.ts";
import type { HttpEndpoint, Listener, ListenerSpec, TopicPublisher } from "../transport/types.ts";
import { errorLog, type Node } from "./node.ts";
import { reasonOf, StartError } from "./start-error.ts";

/**
 * Number of sockets reserved for the API, so that a node can be managed even if clients use all
 * other sockets.
 */
const SPARE_SOCKETS = 64;
const REFUSAL_LOG_MS = 10_000;
/**
 * Body budget of calls on a separate `client.listen`, as a fraction of `api.maxPendingBodyBytes`.
 */
const CLIENT_BODY_SHARE = 1 / 4;

interface Listeners {
  readonly api: Listener;
  readonly compat: Listener | undefined;
  readonly client: Listener;
  /** Listener for WKProto over TCP, or `undefined` if its address is not set. */
  readonly wkproto: Listener | undefined;
  /** Publishes frames to the client sockets of all listeners. */
  readonly publisher: TopicPublisher;
}

export async function createListeners(
  node: Node,
  endpoints: {
    readonly http: HttpEndpoint;
    readonly viewers: HttpEndpoint;
    readonly sockets: Gateway["endpoint"];
  },
): Promise<Listeners> {
  const { config } = node;
  const { http, viewers, sockets } = endpoints;
  const bodies = createBodies(node);
  const shared = {
    driver: node.transport,
    limits: createLimits(node),
    bodies: bodies.backends,
    onError: errorLog(node, "transport"),
    onHeadRefused: (problem: HeadProblem) => node.metrics.families.headsRefused.of(problem).add(),
  };
  const api = {
    ...shared,
    ...addressOf(config.api.listen),
    http,
    tls: tlsFiles(config.api.tls),
    trustedProxies: config.api.trustedProxies,
    spareSockets: 0,
  };
  const compat =
    config.api.compatListen === ""
      ? undefined
      : createListener({
          ...api,
          ...addressOf(config.api.compatListen),
          driver: await loadPortable(config.transport.maxHeadBytes),
        });
  const publisher = new ClientSockets(sockets, shared);
  const wkproto = createWkprotoListener(config, shared, publisher);
  const clientAddress = addressOf(config.client.listen);
  if (sameAddress(addressOf(config.api.listen), clientAddress)) {
    const both = createListener(api, publisher);
    return { api: both, compat, client: both, wkproto, publisher };
  }
  return {
    api: createListener(api),
    compat,
    client: createListener(
      {
        ...shared,
        ...clientAddress,
        bodies: bodies.clients,
        http: viewers,
        tls: tlsFiles(config.client.tls),
        trustedProxies: config.client.trustedProxies,
        spareSockets: SPARE_SOCKETS,
      },
      publisher,
    ),
    wkproto,
    publisher,
  };
}

function createWkprotoListener(
  { client, protocol }: Config,
  shared: Pick<ListenerSpec, "limits" | "onError">,
  clients: ClientSockets,
): Listener | undefined {
  const { listen, tls, trustedProxies, idleTimeoutS } = protocol.wkproto;
  if (listen === "") return undefined;
  const spec = {
    ...shared,
    ...addressOf(listen),
    name: WKPROTO,
    tls: tlsFiles(tls),
    trustedProxies,
    idleTimeoutS,
    spareSockets: SPARE_SOCKETS,
    createFramer: () => new PacketFramer(client.maxFrameBytes),
  };
  return createTcpListener(spec, clients);
}

function createLimits({ config, logger, metrics }: Node): SocketLimits {
  const { families } = metrics;
  const { max, maxUnauthenticatedPerAddress } = config.sockets;
  const log = roomLogger(logger, "transport");
  const nextLogMs = { max: 0, address: 0, descriptors: 0, silent: 0 };
  const warn = (reason: keyof typeof nextLogMs, address: string, message: string) => {
    const nowMs = performance.now();
    if (nowMs < nextLogMs[reason]) return;
    nextLogMs[reason] = nowMs + REFUSAL_LOG_MS;
    log.warn({ reason, address }, message);
  };
  const limits = new SocketLimits({
    maxUnauthenticatedPerAddress,
    reserve: new DescriptorReserve(),
    capacity() {
      const capacity = socketCapacity();
      if (max > capacity)
        log.warn(
          { max, capacity },
          "sockets.max is higher than the limit on open files allows, so the lower limit applies",
        );
      return max === 0 ? capacity : Math.min(max, capacity);
    },
    onRefused(reason, address) {
      families.socketsRefused.of(reason).add();
      warn(reason, address, "Connections are closed because a limit is reached");
    },
    onDisplaced(address) {
      families.socketsDisplaced.of().add();
      warn(
        "silent",
        address,
        "Silent client sockets of an address are closed, because the address has exceeded its limit of unauthenticated sockets",
      );
    },
  });
  families.sockets.of().from(() => limits.open);
  families.socketsMax.of().from(() => limits.max);
  return limits;
}

/**
 * Creates the body budget of `api.listen` and `api.compatListen`, and a second one for a separate
 * `client.listen`, so that clients cannot use up the backends' memory. If `client.listen` equals
 * `api.listen`, clients and backends share the first budget.
 */
function createBodies({ config, metrics }: Node) {
  const { maxPendingBodyBytes, maxBodyBytes } = config.api;
  const backends = new BodyBudget(maxPendingBodyBytes);
  const clients = new BodyBudget(Math.max(maxBodyBytes, maxPendingBodyBytes * CLIENT_BODY_SHARE));
  metrics.families.bodiesPending.of().from(() => backends.bytes + clients.bytes);
  return { backends, clients };
}

const VARIABLES = {
  "api.listen": "JINDOU_API_LISTEN",
  "api.compatListen": "JINDOU_API_COMPAT_LISTEN",
  "client.listen": "JINDOU_CLIENT_LISTEN",
  "protocol.wkproto.listen": "JINDOU_PROTOCOL_WKPROTO_LISTEN",
} as const;

/** Starts the listener and returns its port. Throws a StartError that names the setting. */
export async function startListener(
  listener: Listener,
  setting: keyof typeof VARIABLES,
): Promise<number> {
  try {
    return await listener.start();
  } catch (error) {
    throw new StartError(
      `${reasonOf(error)}; set ${setting} (${VARIABLES[setting]}) to a different address`,
    );
  }
}

function addressOf(text: string): Address {
  const address = parseAddress(text);
  // The configuration was validated, so the address is always valid.
  if (address === undefined) throw new Error(`${text} is not an address`);
  return address;
}

function tlsFiles(tls: Config["api"]["tls"]): TlsFiles | undefined {
  if (tls.certFile === "") return undefined;
  return {
    certFile: tls.certFile,
    keyFile: tls.keyFile,
    caFile: tls.caFile || undefined,
    passphrase: tls.passphrase || undefined,
  };
}
