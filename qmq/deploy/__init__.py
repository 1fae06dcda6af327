"""The files that a mesh is deployed with: certificates (`qmq cert`) and the folders of nodes (`qmq init`).

certificates  authorities and certificates in memory; needs the library `cryptography`
folder        the layout of a folder of a mesh, and how its files are written
"""
