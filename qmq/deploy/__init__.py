"""The files that a mesh is deployed with: certificates (`qmq cert`) and the folders of nodes (`qmq init`).

certificates  authorities and certificates in memory; needs the library `cryptography`
folder        the layout of the folder of a mesh, and which certificates are in it
node_files    the texts of peers file, node files, units and manifests, from the files in `templates`
writing       how files are written: for this user alone, as a whole
"""
