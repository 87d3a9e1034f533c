// Schemas of the sections `transport` and `sockets`: the driver, and the limits on all of a node's
// sockets. Keeps no state.

import { Type } from "typebox";

export const transportOptions = Type.Object(
  {
    driver: Type.Enum(["auto", "uws", "portable"], {
      default: "auto",
      description:
        "Library that serves sockets and HTTP. `uws` is uWebSockets.js, native code that does the fan-out in C++. `portable` is Node.js itself with `ws`: it runs on every system, and costs more CPU time (docs/operations.md, section Transport). `auto` uses uWebSockets.js if it loads on this system, otherwise the portable driver, with a warning.",
    }),
    maxHeadBytes: Type.Integer({
      default: 16_384,
      minimum: 4096,
      maximum: 65_536,
      unit: "bytes",
      description:
        "Maximum size of a request's head: the request line and all headers, such as cookies and tokens. A larger head is rejected with 431. A connection that has sent part of a head uses up to 1.25 times this much memory, for at most 12 seconds.",
    }),
  },
  { additionalProperties: false },
);

export const socketsOptions = Type.Object(
  {
    max: Type.Integer({
      default: 0,
      minimum: 0,
      maximum: 10_000_000,
      unit: "sockets",
      description:
        "Maximum number of sockets on all listeners together. HTTP connections, client sockets, and connections that have not sent a request yet are counted. Further connections are closed at once. With 0, or a value above what the system allows, the limit is the process's limit on open files minus a reserve for files and Redis.",
    }),
    maxUnauthenticatedPerAddress: Type.Integer({
      default: 256,
      minimum: 0,
      maximum: 10_000_000,
      unit: "sockets",
      description:
        "Number of unauthenticated client sockets from one address (an IPv4 address or an IPv6 /64) above which sockets that have sent nothing for 3 seconds are closed, oldest first. New client sockets are always accepted. The same number limits the HTTP calls from one address that have no valid credential and either wait for the rest of their body or are logins (`POST /manager/login`) in progress; the connections of further such calls are closed. Connections that stay open after a refused call are counted too, for up to 30 seconds. GET calls are not counted, nor are refused calls whose whole body has arrived. The limit is at most half of the limit of all sockets. Connections from one address that have not sent a request yet are limited to three quarters of the limit of all sockets. 0 means no limit by address. Behind a proxy, set `client.trustedProxies` and `api.trustedProxies`, so that each client has its own address.",
    }),
  },
  { additionalProperties: false },
);
