// Schemas of the configuration sections `api`, `auth`, `admin` and `managers` of the control plane.
// Values marked `secret` are never printed.

import { Type } from "typebox";
import { PERMISSIONS } from "../broker/manager-accounts.ts";

const CLOSED = { additionalProperties: false };

export const tlsOptions = Type.Object(
  {
    certFile: Type.String({
      default: "",
      unit: "path",
      description:
        "PEM file with the certificate chain. An empty value means that this listener does not use TLS.",
    }),
    keyFile: Type.String({
      default: "",
      unit: "path",
      description: "PEM file with the private key of the certificate.",
    }),
    caFile: Type.String({
      default: "",
      unit: "path",
      description:
        "PEM file with the certificate authorities against which a client certificate is checked if a client sends one. This is not access control: clients without a certificate are accepted. An empty value means the system's certificate authorities.",
    }),
    passphrase: Type.String({
      default: "",
      secret: true,
      description: "Passphrase of the private key, if the key is encrypted.",
    }),
  },
  CLOSED,
);

export const apiOptions = Type.Object(
  {
    listen: Type.String({
      default: "127.0.0.1:5001",
      minLength: 1,
      unit: "host:port",
      description:
        "Address of the HTTP control plane. If this address or `api.compatListen` is not a loopback address, every call except logins, `/`, `/healthz` and `/readyz` needs a credential, and the process starts only if `api.token`, `admin.password` or `managers` is set. Port 0 selects a free port.",
    }),
    compatListen: Type.String({
      default: "",
      unit: "host:port",
      description:
        "Second address of the HTTP control plane, always served by the portable transport. It is intended for HTTP/1.0 health checks and for HTTP clients that `api.listen` cannot serve (docs/http.md, section What the parser accepts). TLS, trusted proxies, limits and the credential rule are the same as for `api.listen`. An empty value means that there is no second address.",
    }),
    token: Type.String({
      default: "",
      maxLength: 4096,
      secret: true,
      description:
        "Static API token that backends send in the `token` header, or as a Bearer token in the `Authorization` header. It has every permission. It must have at least 16 characters if `api.listen` or `api.compatListen` is not a loopback address; choose it at random. If it is set, every call except logins, `/`, `/healthz` and `/readyz` needs a credential. An empty value means that there is no static token.",
    }),
    tls: tlsOptions,
    trustedProxies: Type.Array(Type.String({ minLength: 1 }), {
      default: [],
      description:
        "Proxies in front of this listener: networks in CIDR form (`10.0.0.0/8`, `fd00::/8`) or single addresses. If the peer of a connection is one of them, the client's address is the rightmost address in `X-Forwarded-For` that is not one of them, or the address in the header of the PROXY protocol, version 2. It is used for limits by address, for logs and in `/connz`. An empty list means that the client's address is always the address of the peer.",
    }),
    console: Type.Enum(["on", "off"], {
      default: "on",
      description:
        "Whether this address serves the operator's console at `/console/`. Its files contain no broker data; the console logs in and calls the API like any other client.",
    }),
    maxBodyBytes: Type.Integer({
      default: 1_048_576,
      minimum: 1024,
      maximum: 67_108_864,
      unit: "bytes",
      description:
        "Maximum size of a request body. A call with a larger body is rejected with 413.",
    }),
    maxPendingBodyBytes: Type.Integer({
      default: 67_108_864,
      minimum: 1_048_576,
      maximum: 17_179_869_184,
      unit: "bytes",
      description:
        "Maximum memory for the partially received bodies of all calls together. A call whose body does not fit is rejected with 503. On the portable transport, partially received heads count too. If `client.listen` has its own address, calls to that address do not count towards this limit. They have a separate limit: a quarter of this value, but at least `api.maxBodyBytes`.",
    }),
    maxSubscribersPerCall: Type.Integer({
      default: 10_000,
      minimum: 1,
      maximum: 1_000_000,
      unit: "uids",
      description: "Maximum number of subscribers in one call.",
    }),
    maxFollowers: Type.Integer({
      default: 10_000,
      minimum: 1,
      maximum: 1_000_000,
      unit: "readers",
      description:
        "Maximum number of clients that follow streams over HTTP on this node at the same time. Clients of /stream and of /v1/stream are counted separately. Further clients are rejected with 503.",
    }),
  },
  CLOSED,
);

export const authOptions = Type.Object(
  {
    api: Type.Enum(["auto", "required"], {
      default: "auto",
      description:
        "When control-plane calls need a credential. `auto`: if `api.listen` or `api.compatListen` is not a loopback address, or if `api.token` is set. `required`: always.",
    }),
    clients: Type.Enum(["token", "jwt", "token+jwt", "none"], {
      default: "token",
      description:
        "How clients authenticate (docs/auth.md). `token`: with a token registered through `POST /user/token`. `jwt`: with a JWT that your own issuer signs (the settings that begin with auth.jwt). `token+jwt`: with either; a token in the form of a JWT is verified as a JWT. `none`: not at all; a client connects as any user it names. The process then starts only if `client.listen` is a loopback address or `client.allowedOrigins` is set.",
    }),
    tokenTtlS: Type.Integer({
      default: 86_400,
      minimum: 60,
      maximum: 31_536_000,
      unit: "seconds",
      description: "Lifetime of an access token issued by `POST /manager/login`.",
    }),
    loginAttempts: Type.Integer({
      default: 5,
      minimum: 1,
      maximum: 1000,
      unit: "failed logins",
      description:
        "Number of failed logins within `auth.loginWindowS`, from one network (an IPv4 address or an IPv6 /64) or with one username, after which further logins are limited. Logins from this network are rejected with 429 until the window ends. Logins with this username are delayed by one second. A user who has logged in from the network before is limited only by the user's own failures.",
    }),
    loginWindowS: Type.Integer({
      default: 60,
      minimum: 1,
      maximum: 86_400,
      unit: "seconds",
      description: "Length of the window in which failed logins are counted.",
    }),
    tokenAttempts: Type.Integer({
      default: 20,
      minimum: 1,
      maximum: 1_000_000,
      unit: "failed attempts",
      description:
        "Number of wrong client tokens and wrong URL signatures from one network (an IPv4 address or an IPv6 /64) within `auth.tokenWindowS` after which tokens and signatures from that network are checked one at a time, two per second. A user who has connected from that network before is slowed down only by the user's own failures. Attempts on sockets, at /stream and at /v1/stream are counted together. Wrong API tokens (`api.token`) are limited in the same way, but are counted separately, and on each node separately. Raise this value if many clients with expired tokens share an address.",
    }),
    tokenWindowS: Type.Integer({
      default: 60,
      minimum: 1,
      maximum: 86_400,
      unit: "seconds",
      description: "Length of the window in which wrong tokens and signatures are counted.",
    }),
  },
  CLOSED,
);

export const adminOptions = Type.Object(
  {
    password: Type.String({
      default: "",
      maxLength: 1024,
      secret: true,
      description:
        "Password of the manager `admin`. An empty value means that a random password is created on the first start and printed once. Ignored if `managers` is set.",
    }),
  },
  CLOSED,
);

export const managersOptions = Type.Array(
  Type.Object(
    {
      username: Type.String({
        minLength: 1,
        maxLength: 128,
        description: "Name used to log in.",
      }),
      passwordHash: Type.String({
        default: "",
        secret: true,
        description:
          "Hash of the password, as printed by `jindou hash-password`: `scrypt$N$r$p$salt$hash`. Set either this or `password`.",
      }),
      password: Type.String({
        default: "",
        maxLength: 1024,
        secret: true,
        description:
          "Password in plain text, for values that come from the environment. Set either this or `passwordHash`.",
      }),
      role: Type.Enum(["admin", "operator", "viewer"], {
        default: "viewer",
        description:
          "Role of the account. `viewer` may read the state of the system, the event feed and the webhooks. `operator` may in addition use streams and change users, channels, messages, events and webhooks. `admin` may do everything.",
      }),
      permissions: Type.Array(Type.Enum([...PERMISSIONS]), {
        default: [],
        description:
          "Permissions of the account, instead of those of its role. An empty list means the permissions of the role.",
      }),
    },
    CLOSED,
  ),
  {
    default: [],
    description:
      "Accounts that can log in at `POST /manager/login`. An empty list means a single account, `admin`.",
  },
);
