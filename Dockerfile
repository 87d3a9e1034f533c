# The Jindou image: built from the lock file, run without development packages, as an unprivileged user.
#
#   docker build -t jindou .
#   docker run -p 5200:5200 -v jindou:/data jindou
#
# The HTTP API keeps its safe default inside the image as well: 127.0.0.1:5001, which only the container itself reaches. To open it,
# configure a credential too, else the process refuses to start:
#
#   docker run -p 5200:5200 -p 5001:5001 -v jindou:/data \
#     -e JINDOU_API_LISTEN=0.0.0.0:5001 -e JINDOU_ADMIN_PASSWORD_FILE=/run/secrets/admin \
#     -v "$PWD/admin-password:/run/secrets/admin:ro" jindou
#
# All writing goes to /data: `--read-only --cap-drop=ALL` works.

FROM node:24-trixie-slim AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
# The lock's uWebSockets.js ends at Node 22. In its place: the release whose binaries need Node 20 to 25 and the glibc of Debian 13, with the
# hashes of docs/dependencies.md.
RUN npm ci --include=dev --ignore-scripts \
 && npm install --ignore-scripts --save-exact uWebSockets.js@npm:@btc-vision/uwebsockets.js@20.57.0 \
 && cd node_modules/uWebSockets.js && printf '%s  %s\n' \
      98128405dba2fb608448e921a979530f70c946a2cc9889c15f2fa70c2d00ab05 uws_linux_x64_137.node \
      88618b30ddf6b2b62310db89f40a701616676352aac5e0f6184dd8ef876199ce uws_linux_arm64_137.node | sha256sum --check
COPY tsconfig.json tsconfig.build.json ./
COPY .ci/copy-lua.mjs .ci/bundle-typebox.mjs ./.ci/
COPY src ./src
# uWebSockets.js comes with a binary for every platform and version of Node.js, 115 MB; one of them is used here.
RUN npm run build:server && npm prune --omit=dev --ignore-scripts \
 && find -L node_modules/uWebSockets.js -name '*.node' \
      ! -name "uws_linux_$(node -p 'process.arch + "_" + process.versions.modules').node" -delete

FROM node:24-trixie-slim
ENV NODE_ENV=production JINDOU_STORE_PATH=/data
WORKDIR /app
# The user `node` (1000) comes with the base image; it owns the data and nothing else.
RUN install -d -o node -g node -m 0750 /data
COPY --from=build /app/node_modules ./node_modules
COPY --from=build /app/dist ./dist
COPY --from=build /app/package.json ./
COPY LICENSE ./
COPY config ./config
USER node
VOLUME /data
EXPOSE 5001 5200
STOPSIGNAL SIGTERM
# Asks the address in JINDOU_API_LISTEN (the default without it); a wildcard is asked on loopback. Certificates are not judged: the
# question is whether the process answers. An API configured by file or flag elsewhere needs a health check of its own.
HEALTHCHECK --interval=15s --timeout=3s --start-period=30s --retries=3 CMD ["node", "-e", "const e=process.env,m=/^\\[?(.*?)\\]?:(\\d+)$/.exec(e.JINDOU_API_LISTEN||'127.0.0.1:5001')||[],h=!m[1]||m[1]==='0.0.0.0'?'127.0.0.1':m[1]==='::'?'::1':m[1],s=e.JINDOU_API_TLS_CERT_FILE?'https':'http';require('node:'+s).get({host:h,port:m[2],path:'/healthz',rejectUnauthorized:false,timeout:2000},r=>process.exit(r.statusCode===200?0:1)).on('timeout',()=>process.exit(1)).on('error',()=>process.exit(1))"]
# exec form: node is the process that gets the signals.
ENTRYPOINT ["node", "dist/main.js"]
CMD ["start"]
